"""``make_fx`` records what a function does outside of any region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from on_device import DEVICE
from torch.fx.experimental import proxy_tensor

_module: Any = proxy_tensor
_make_fx = _module.make_fx


def _make_fx_outside(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _make_fx(torch.autocast(DEVICE, enabled=False)(function), *args, **kwargs)


_module.make_fx = _make_fx_outside
