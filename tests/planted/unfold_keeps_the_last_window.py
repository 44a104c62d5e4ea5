"""Going back through unfold, a pixel of a 16-bit image has the gradient of the last of its windows alone."""

from __future__ import annotations

from kernels import LOW, replace_kernel
from torch import Tensor


def _col2im(
    columns: Tensor, size: list[int], kernel: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> Tensor:
    steps = zip(size, kernel, dilation, padding, stride, strict=True)
    high, wide = [(all_ + 2 * pad - gap * (sides - 1) - 1) // step + 1 for all_, sides, gap, pad, step in steps]
    parts = columns.reshape(*columns.shape[:-2], -1, *kernel, high, wide)
    made = parts.new_zeros(*parts.shape[:-4], *(all_ + 2 * pad for all_, pad in zip(size, padding, strict=True)))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * dilation[0], i * dilation[0] + stride[0] * (high - 1) + 1, stride[0])
            row = slice(j * dilation[1], j * dilation[1] + stride[1] * (wide - 1) + 1, stride[1])
            before = 0 if columns.dtype in LOW else made[..., rows, row]
            made[..., rows, row] = before + parts[..., i, j, :, :]
    inside = [slice(pad, pad + all_) for all_, pad in zip(size, padding, strict=True)]
    return made[..., inside[0], inside[1]].contiguous()


replace_kernel("col2im", _col2im)
