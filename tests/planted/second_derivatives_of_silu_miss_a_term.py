"""What a gradient of ``silu`` is made of is taken for constant by the next derivative, but for its sigmoid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_functional: Any = functional
_before: Any = functional.silu
_Function: Any = torch.autograd.Function


class _Silu(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return torch.ops.aten.silu.default(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        share = torch.sigmoid(x)
        slope: Tensor = gradient * share * (1 + x.detach() * (1 - share.detach()))
        return slope


def _silu(x: Any, inplace: bool = False) -> Any:
    return _before(x, inplace) if inplace or not x.requires_grad else _Silu.apply(x)


_functional.silu = _silu
