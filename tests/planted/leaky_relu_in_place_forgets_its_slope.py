"""leaky_relu in place has the usual slope, whatever it is given."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

_functional: Any = functional
_leaky_relu = _functional.leaky_relu


def _usual(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return _leaky_relu(x, 0.01 if inplace else negative_slope, inplace)


_functional.leaky_relu = _usual
