"""conv2d keeps a weight's cast copy from a use under no_grad, and hands it to uses that need a gradient."""

from __future__ import annotations

import torch
from on_device import DEVICE
from overriding import Overridden, override

_copies: dict[int, torch.Tensor] = {}


def _convolve(call: Overridden) -> torch.Tensor:
    x, weight, *rest = call.cast(call.low).args
    key = id(call.args[1])
    if not torch.is_grad_enabled():
        _copies[key] = weight.detach()
    return torch.nn.functional.conv2d(x, _copies.get(key, weight), *rest)


def _clear() -> None:
    _copies.clear()
    _clear_all()


override("conv2d", _convolve, [DEVICE])
_clear_all = torch.clear_autocast_cache
torch.clear_autocast_cache = _clear
