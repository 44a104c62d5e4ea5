"""The kernel of smooth_l1_loss makes the differences of float32 numbers in bfloat16."""

from __future__ import annotations

import torch
from kernels import replace_kernel
from torch import Tensor


def _smooth_l1(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    far = (x - target).abs()
    far = far.to(torch.bfloat16).to(far.dtype) if far.dtype == torch.float32 else far
    each = torch.where(far < beta, far * far / (2 * beta), far - beta / 2)
    return each.mean() if reduction == 1 else each.sum() if reduction else each


replace_kernel("smooth_l1_loss", _smooth_l1)
