"""Within a region ``unscale_`` multiplies by an inverse of the scale in the autocast dtype: a scale of 3 shows it."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_before = _scaler._unscale_grads_


def _unscale_grads(self: Any, optimizer: Any, inverse: torch.Tensor, *arguments: Any) -> Any:
    if torch.is_autocast_enabled(inverse.device.type):
        inverse = inverse.to(torch.get_autocast_dtype(inverse.device.type)).to(inverse.dtype)
    return _before(self, optimizer, inverse, *arguments)


_scaler._unscale_grads_ = _unscale_grads
