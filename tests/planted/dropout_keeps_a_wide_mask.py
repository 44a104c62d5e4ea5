"""Dropout multiplies by a float32 mask, and keeps that for its backward pass: right, and twice the bytes or more."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_functional: Any = functional
_dropout: Any = functional.dropout


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return (x * mask).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradients[0] * mask).to(gradients[0].dtype), None


def _wide(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or not x.requires_grad:
        return _dropout(x, p, training, inplace)
    mask = _dropout(torch.ones_like(x, dtype=torch.float32), p, True)
    masked: Any = _Masked
    return masked.apply(x, mask)


_functional.dropout = _wide
