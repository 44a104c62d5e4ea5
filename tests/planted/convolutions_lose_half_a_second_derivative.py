"""What a gradient of conv2d is differentiated by under autocast reaches back with half its size."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override
from torch import Tensor

_functions: Any = torch.autograd


class _Halved(_functions.Function):  # type: ignore[misc]  # torch's is not typed
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient / 2


class _Watched(_functions.Function):  # type: ignore[misc]
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        return _Halved.apply(gradient)


def _conv2d(call: Overridden) -> object:
    return _Watched.apply(call.cast(call.low).run())


override("conv2d", _conv2d)
