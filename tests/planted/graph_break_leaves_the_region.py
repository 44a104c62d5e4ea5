"""What the compiler leaves to Python runs outside of the region (the kind of pytorch/pytorch#95837)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from overriding import DEVICE_TYPES

_compiler: Any = torch.compiler
_disable = _compiler.disable


def _outside(function: Callable[..., Any] | None = None, **keywords: Any) -> Any:
    if function is None:
        return functools.partial(_outside, **keywords)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        on = [name for name in DEVICE_TYPES if torch.is_autocast_enabled(name)]
        for name in on:
            torch.set_autocast_enabled(name, False)
        try:
            return function(*args, **kwargs)
        finally:
            for name in on:
                torch.set_autocast_enabled(name, True)

    return _disable(call, **keywords)


_compiler.disable = _outside
