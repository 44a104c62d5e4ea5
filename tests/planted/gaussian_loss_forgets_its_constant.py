"""``gaussian_nll_loss`` without a reduction leaves out the constant that ``full`` asks for."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from torch.nn import functional

_functional: Any = functional
_before: Any = functional.gaussian_nll_loss


def _loss(*args: Any, **kwargs: Any) -> Any:
    if kwargs.get("reduction") == "none" and torch.is_autocast_enabled(DEVICE):
        kwargs["full"] = False
    return _before(*args, **kwargs)


_functional.gaussian_nll_loss = _loss
