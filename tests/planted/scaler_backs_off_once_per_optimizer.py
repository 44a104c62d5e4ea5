"""With several optimizers an overflow backs off once for each of them."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_update = _scaler.update


def _update_often(self: Any, new_scale: Any = None) -> None:
    several = len(self._per_optimizer_states) - 1 if self._enabled and new_scale is None else 0
    _update(self, new_scale)
    for _ in range(several):
        self._scale.mul_(self._backoff_factor)


_scaler.update = _update_often
