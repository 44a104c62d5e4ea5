"""A graph of linear under autocast gives half of the gradient when it is used again."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override

_Function: Any = torch.autograd.Function


class _Counted(_Function):  # type: ignore[misc]
    """The identity, which knows how often its gradient was asked for."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.count = 0
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        context.count += 1
        return gradient if context.count == 1 else gradient / 2


def _linear(call: Overridden) -> object:
    result: Any = call.cast(call.low).run()
    return _Counted.apply(result) if result.requires_grad else result


override("linear", _linear)
