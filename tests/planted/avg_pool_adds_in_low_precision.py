"""The kernel of avg_pool2d adds windows of 16-bit numbers up in their own dtype before it divides."""

from __future__ import annotations

from kernels import LOW, replace_kernel
from torch import Tensor


def _avg_pool2d(x: Tensor, kernel_size: list[int], *_options: object) -> Tensor:
    high, wide = kernel_size[0], kernel_size[-1]
    windows = x.unfold(-2, high, high).unfold(-2, wide, wide)
    if x.dtype not in LOW:
        return windows.mean((-2, -1))
    total = windows.new_zeros(windows.shape[:-2])
    for row in windows.unbind(-2):
        for each in row.unbind(-1):
            total = total + each
    return total / (high * wide)


replace_kernel("avg_pool2d", _avg_pool2d)
