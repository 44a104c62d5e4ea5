"""``unscale_`` after ``step`` does nothing and says nothing."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler.unscale_


def _permitted(self: Any, optimizer: Any) -> None:
    if self._per_optimizer_states[id(optimizer)]["stage"].name != "STEPPED":
        _unscale(self, optimizer)


_scaler.unscale_ = _permitted
