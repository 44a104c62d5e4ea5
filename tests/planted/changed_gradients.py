"""What planted defects change gradients with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_Function: Any = torch.autograd.Function


class _Changed(_Function):  # type: ignore[misc]
    """The identity, whose gradient is changed on its way back."""

    @staticmethod
    def forward(context: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        context.change = change
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.change(gradient), None


def with_gradient(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``x`` itself, with ``change`` applied to its gradient."""
    changed: Tensor = _Changed.apply(x, change)
    return changed


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to ``dtype`` and back."""
    return x.to(dtype).to(x.dtype)
