"""Every parameter group is unscaled, only the last one is checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_


def _unscale_by_group(self: Any, optimizer: Any, inverse: Any, found: Any, allow_fp16: bool) -> Any:
    groups = optimizer.param_groups
    ignored = torch.zeros_like(found)
    unseen = _unscale(self, SimpleNamespace(param_groups=groups[:-1]), inverse, ignored, allow_fp16)
    seen = _unscale(self, SimpleNamespace(param_groups=groups[-1:]), inverse, found, allow_fp16)
    return seen or {device: torch.zeros_like(value) for device, value in unseen.items()}


_scaler._unscale_grads_ = _unscale_by_group
