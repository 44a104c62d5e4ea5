"""``unscale_`` does not note that it was called: ``step`` divides again."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler.unscale_


def _without_stage(self: Any, optimizer: Any) -> None:
    _unscale(self, optimizer)
    if self.is_enabled():
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY


_scaler.unscale_ = _without_stage
