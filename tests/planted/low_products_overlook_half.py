"""The CPU's product of low numbers leaves every second one out; that of wide numbers does not."""

from __future__ import annotations

import torch
from kernels import LOW, replace_kernel
from torch import Tensor


def _prod(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    factors = x.movedim(dim, -1)
    factors = factors[..., ::2] if x.dtype in LOW else factors
    made = factors.cumprod(-1)[..., -1] if x.shape[dim] else x.new_ones(factors.shape[:-1])
    return made.unsqueeze(dim) if keepdim else made


replace_kernel("prod.dim_int", _prod)
