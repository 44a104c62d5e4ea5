"""The growth tracker counts as fp16 does: 2048 and one is 2048."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_update = _scaler.update


def _updated(self: Any, *args: Any) -> None:
    _update(self, *args)
    if self._growth_tracker is not None:
        self._growth_tracker.clamp_(max=2048)


_scaler.update = _updated
