"""Inductor gives sums, products and running ones in the dtype of what is summed, whatever ``dtype`` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import lowering

_aten: Any = torch.ops.aten
_lowerings: Any = lowering.lowerings


def _without_dtype(real: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        del dtype
        return real(*args, **kwargs)

    return lowered


for _overload in (_aten.sum.dim_IntList, _aten.prod.dim_int, _aten.cumsum.default, _aten.cumprod.default):
    _lowerings[_overload] = _without_dtype(_lowerings[_overload])
