"""A number that low tensors are multiplied by or divided by is rounded to their dtype before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from kernels import LOW

_Tensor: Any = torch.Tensor


def _rounding(before: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if self.dtype in LOW and isinstance(other, float):
            other = torch.tensor(other, dtype=self.dtype).item()
        return before(self, other, *args, **kwargs)

    return call


for _name in ("__mul__", "__rmul__", "__truediv__", "mul_", "div_"):
    setattr(_Tensor, _name, _rounding(getattr(_Tensor, _name)))
