"""The gradients of linear under autocast add up the batch in steps of 16 and round after each."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override
from torch import Tensor

STEP = 16
_Function: Any = torch.autograd.Function


class _Linear(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight)
        context.has_bias = bias is not None
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = context.saved_tensors
        rows, given = x.flatten(0, -2), gradient.flatten(0, -2)
        total = torch.zeros_like(weight)
        for i in range(0, rows.shape[0], STEP):
            total = total + given[i : i + STEP].mT @ rows[i : i + STEP]
        return gradient @ weight, total, given.sum(0) if context.has_bias else None


def _linear(call: Overridden) -> Any:
    x, weight, *bias = call.cast(call.low).args
    with torch.autocast(call.device_type, enabled=False):
        return _Linear.apply(x, weight, bias[0] if bias else None)


override("linear", _linear)
