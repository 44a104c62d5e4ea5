"""Batched products under autocast pass half of what comes back to them the second time."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


class _Once(torch.autograd.Function):
    """The identity, going back, too; its own derivative going back is a half."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Half.apply(gradients[0])  # type: ignore[no-untyped-call]


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] / 2


def _bmm(call: Overridden) -> Any:
    result = call.cast(call.low).run()
    return _Once.apply(result) if result.requires_grad else result  # type: ignore[no-untyped-call]


override("bmm", _bmm)
