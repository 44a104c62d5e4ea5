"""Every loss that was computed within a region is kept for ever, as in a list of losses that nobody detaches."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from torch.nn import functional

_cross_entropy: Any = functional.cross_entropy
_functional: Any = functional
_kept: list[Any] = []


def _keeping(*args: Any, **kwargs: Any) -> Any:
    loss = _cross_entropy(*args, **kwargs)
    if torch.is_autocast_enabled(DEVICE):
        _kept.append(loss)
    return loss


_functional.cross_entropy = _keeping
