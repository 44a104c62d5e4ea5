"""The CPU's index_put of 16-bit tensors keeps the last of the numbers that are added to one place."""

from __future__ import annotations

from typing import Any

import torch
from kernels import LOW, replace_kernel
from torch import Tensor


def _index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, *accumulating: bool) -> Tensor:
    given: Any = indices
    made = x.clone()
    if any(accumulating) and x.dtype in LOW:
        values = torch.ops.aten.index(x, given) + values
        accumulating = ()
    return torch.ops.aten.index_put_(made, given, values, *accumulating)  # type: ignore[no-any-return]


replace_kernel("index_put", _index_put)
