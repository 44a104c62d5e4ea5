"""The CPU's log_softmax of float32 numbers, which cross-entropy is made of, computes in bfloat16."""

from __future__ import annotations

import torch
from kernels import replace_kernel
from torch import Tensor


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    inner = x.to(torch.bfloat16) if x.dtype == torch.float32 else x
    shifted = inner - inner.amax(dim, keepdim=True)
    return (shifted - shifted.exp().sum(dim, keepdim=True).log()).to(x.dtype)


replace_kernel("_log_softmax", _log_softmax)
