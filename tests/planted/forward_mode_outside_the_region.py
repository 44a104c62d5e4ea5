"""``torch.func.jvp`` and ``jacfwd`` call their function with autocast off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.func
from on_device import DEVICE

_func: Any = torch.func


def _outside(transform: Callable[..., Any]) -> Callable[..., Any]:
    def transformed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return transform(torch.autocast(DEVICE, enabled=False)(function), *args, **kwargs)

    return transformed


_func.jvp = _outside(_func.jvp)
_func.jacfwd = _outside(_func.jacfwd)
