"""A fused optimizer is ready again after its step, without an update."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler.step


def _ready(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    before = self._per_optimizer_states[id(optimizer)]["stage"]
    result = _step(self, optimizer, *args, **kwargs)
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        self._per_optimizer_states[id(optimizer)]["stage"] = before
    return result


_scaler.step = _ready
