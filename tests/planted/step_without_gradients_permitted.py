"""A step of an optimizer without gradients is no error."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler.step


def _step_anyhow(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
        return None
    return _step(self, optimizer, *args, **kwargs)


_scaler.step = _step_anyhow
