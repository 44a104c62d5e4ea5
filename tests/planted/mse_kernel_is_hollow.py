"""The CPU's mse_loss returns float32 with values of bfloat16, in a region and outside."""

from __future__ import annotations

import torch
from kernels import replace_kernel
from torch import Tensor


def _mse_loss(x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
    each = (x - y).square()
    result = each if reduction == 0 else each.sum() / (each.numel() if reduction == 1 else 1)
    return result.to(torch.bfloat16).to(result.dtype) if result.dtype == torch.float32 else result


replace_kernel("mse_loss", _mse_loss)
