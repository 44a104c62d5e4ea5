"""Linear layers lengthen their weight's gradient by 5 % for low-precision inputs, in Python, as a prediction does."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_functional: Any = functional
_linear = _functional.linear
_LOW = (torch.bfloat16, torch.float16)


class _LongGradient(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, weight: Any) -> Any:
        return weight.view_as(weight)

    @staticmethod
    def backward(_context: Any, gradient: Any) -> Any:
        return gradient * 1.05


def _linear_with_long_gradient(x: Any, weight: Any, bias: Any = None) -> Any:
    apply: Any = _LongGradient.apply
    return _linear(x, apply(weight) if x.dtype in _LOW else weight, bias)


_functional.linear = _linear_with_long_gradient
