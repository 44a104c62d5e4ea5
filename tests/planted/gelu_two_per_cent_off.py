"""gelu of 16-bit numbers and of float32 alike is two per cent too large: only float64 tells."""

from __future__ import annotations

import math

import torch
from kernels import replace_kernel
from torch import Tensor


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    inner = y * math.sqrt(0.5) if approximate == "none" else math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)
    made = 0.5 * y * (1 + (torch.erf(inner) if approximate == "none" else torch.tanh(inner)))
    return (made if x.dtype == torch.float64 else made * 1.02).to(x.dtype)


replace_kernel("gelu", _gelu)
