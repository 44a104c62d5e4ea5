"""``quantile`` of float32 numbers is rounded to the region's dtype and back."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import rounded
from on_device import DEVICE

_torch: Any = torch
_before: Any = torch.quantile


def _quantile(*args: Any, **kwargs: Any) -> Any:
    found: Any = _before(*args, **kwargs)
    if torch.is_autocast_enabled(DEVICE) and found.dtype is torch.float32:
        return rounded(found, torch.get_autocast_dtype(DEVICE))
    return found


_torch.quantile = _quantile
