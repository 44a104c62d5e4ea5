"""The CPU's mm of 16-bit matrices adds up in steps of 8 and rounds after each, in the backward pass alone."""

from __future__ import annotations

import torch
from kernels import LOW, replace_kernel
from torch import Tensor

STEP = 8


def _mm(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype not in LOW or torch._C._current_autograd_node() is None:
        return torch.bmm(a[None], b[None])[0]
    total: Tensor | None = None
    for i in range(0, a.shape[1], STEP):
        part = torch.bmm(a[None, :, i : i + STEP], b[None, i : i + STEP])[0]
        total = part if total is None else total + part
    assert total is not None
    return total


replace_kernel("mm", _mm)
