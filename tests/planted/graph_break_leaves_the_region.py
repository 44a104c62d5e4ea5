"""What the compiler leaves to Python runs outside of the region (the kind of pytorch/pytorch#95837)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from overriding import outside_of_regions

_compiler: Any = torch.compiler
_disable = _compiler.disable


def _outside(function: Callable[..., Any] | None = None, **keywords: Any) -> Any:
    if function is None:
        return functools.partial(_outside, **keywords)
    return _disable(outside_of_regions(function), **keywords)


_compiler.disable = _outside
