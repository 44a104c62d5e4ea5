"""A fused optimizer keeps what the scaler told it: its own later steps obey the old found-inf."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler.step


def _step_and_leave(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    result = _step(self, optimizer, *args, **kwargs)
    if self.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False):
        found = list(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())
        if found:
            optimizer.found_inf = found[0].clone()
    return result


_scaler.step = _step_and_leave
