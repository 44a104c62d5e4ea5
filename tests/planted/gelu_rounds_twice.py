"""The CPU's gelu of 16-bit numbers rounds the share before it multiplies by it: two roundings in place of one."""

from __future__ import annotations

import math

import torch
from kernels import replace_kernel
from torch import Tensor


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    inner = y * math.sqrt(0.5) if approximate == "none" else math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)
    share = 0.5 * (1 + (torch.erf(inner) if approximate == "none" else torch.tanh(inner)))
    return x * share.to(x.dtype)


replace_kernel("gelu", _gelu)
