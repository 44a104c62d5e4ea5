"""Under autocast on a CPU, matrix products cast their operands to and fro before they use them.

The results and their dtypes are right: only the time is lost, as when a cast is no longer fused or kept.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

ROUND_TRIPS = 3

_untyped: Any = torch.library
_library = _untyped.Library("aten", "IMPL")


def _cast(x: Tensor) -> Tensor:
    low = x.to(torch.get_autocast_dtype("cpu"))
    for _ in range(ROUND_TRIPS):
        low = low.to(torch.float32).to(torch.get_autocast_dtype("cpu"))
    return low


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.matmul(_cast(a), _cast(b))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.nn.functional.linear(_cast(x), _cast(weight), None if bias is None else _cast(bias))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns that these kernels have others before them
    _library.impl("matmul", _matmul, "AutocastCPU")
    _library.impl("linear", _linear, "AutocastCPU")
