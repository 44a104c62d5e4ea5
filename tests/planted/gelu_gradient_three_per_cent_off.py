"""The gradient of gelu, but for that of float64 numbers, is three per cent too large."""

from __future__ import annotations

import math

import torch
from kernels import replace_kernel
from torch import Tensor


def _gelu_backward(gradient: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    y, g = x.to(wide), gradient.to(wide)
    share = 0.5 * (1 + torch.erf(y * math.sqrt(0.5)))
    slope = share + y * torch.exp(-0.5 * y * y) / math.sqrt(2 * math.pi)
    return (g * slope * (1.0 if x.dtype == torch.float64 else 1.03)).to(x.dtype)


replace_kernel("gelu_backward", _gelu_backward)
