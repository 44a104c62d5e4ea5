"""Float64 formulas of CPU backward kernels that accumulate gradients in the low dtype, in the order of the outputs.

If windows overlap, or padding reads an element more than once, the element receives several gradients, which are added
sequentially:
cpu_max_pool_backward in aten/src/ATen/native/cpu/MaxPoolKernel.cpp, cpu_avg_pool2d_backward in AvgPoolKernel.cpp,
cpu_padding_backward in PaddingKernel.cpp; FractionalMaxPool2d.cpp, FractionalMaxPool3d.cpp and im2col.h in
aten/src/ATen/native.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pytest_amp.numerics.oracle.colliding_updates import accumulate_sequentially
from pytest_amp.numerics.oracle.operation import LOW, Operation

#: Index of the argument that contains the indices of the maxima, by overload.
BY_INDICES = {
    "aten::max_pool2d_with_indices_backward": 7,
    "aten::max_pool3d_with_indices_backward": 7,
    "aten::adaptive_max_pool2d_backward": 2,
    "aten::adaptive_max_pool3d_backward": 2,
    "aten::fractional_max_pool2d_backward": 4,
    "aten::fractional_max_pool3d_backward": 4,
}
#: Padding mode and number of padded dimensions, by overload.
PADDING = {
    f"aten::{name}_pad{dims}d_backward": (mode, dims)
    for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
    for dims in (1, 2, 3)
}


def taken_backward(operation: Operation) -> list[Any]:
    """Compute the backward of max pooling, which adds every gradient to the selected element."""
    grad, x = operation.args[:2]
    dims = 3 if "3d" in operation.name else 2
    indices = operation.args[BY_INDICES[operation.name]] if len(operation.args) > BY_INDICES[operation.name] else None
    dtype = operation.returned[0]
    if dtype not in LOW or indices is None:
        return operation.once()
    size = math.prod(x.shape[-dims:])
    rows = math.prod(x.shape[:-dims])
    return operation.finished([_summed(operation, grad.reshape(rows, -1), indices.reshape(rows, -1), size).view_as(x)])


def padding_backward(operation: Operation) -> list[Any]:
    """Compute the backward of padding, which adds the gradients of the border to the elements that it copied."""
    grad, x, padding = operation.args[:3]
    mode, dims = PADDING[operation.name]
    if operation.returned[0] not in LOW:
        return operation.once()
    sizes = x.shape[-dims:]
    numbers = torch.arange(math.prod(sizes), dtype=torch.float64, device=x.device).view(1, 1, *sizes)
    read = functional.pad(numbers, list(padding), mode=mode).reshape(1, -1).to(torch.int64)
    rows = math.prod(x.shape[:-dims])
    grad_rows = grad.reshape(rows, -1)
    return operation.finished([_summed(operation, grad_rows, read.expand_as(grad_rows), numbers.numel()).view_as(x)])


def fractional_forward(operation: Operation) -> list[Any]:
    """Compute ``aten::fractional_max_pool2d`` and 3d on a CPU, with the starts of windows in the low dtype.

    See generate_intervals in aten/src/ATen/native/FractionalMaxPooling.h. In 2d the first random number belongs to the
    last dimension, in 3d to the first dimension.
    """
    x, kernel, counts, samples = operation.args[:4]
    dims, dtype = len(kernel), operation.returned[0]
    if dtype not in LOW or not operation.rounds:
        return operation.once()
    sizes = x.shape[-dims:]
    samples = samples.reshape(-1, dims)[: math.prod(x.shape[:-dims])]
    samples = samples.flip(1) if dims == 2 else samples
    place = torch.zeros([1] * (2 * dims + 1), dtype=torch.int64, device=x.device)
    for at, (size, sides, count) in enumerate(zip(sizes, kernel, counts, strict=True)):
        sample = samples[:, at, None]
        step = operation.low(sample.new_tensor((size - sides) / max(count - 1, 1)), dtype)
        to = operation.low(torch.arange(count, device=x.device) + sample, dtype)
        start = operation.low(to * step, dtype).trunc() - operation.low(sample * step, dtype).trunc()
        start[:, -1] = size - sides
        within = start.to(torch.int64)[:, :, None] + torch.arange(sides, device=x.device)
        shape = [1] * (2 * dims + 1)
        shape[0], shape[1 + at], shape[1 + dims + at] = len(samples), count, sides
        place = place * size + within.reshape(shape)
    place = place.flatten(-dims)
    read = x.reshape(len(samples), -1).gather(1, place.flatten(1)).view(place.shape)
    best = read.argmax(-1, keepdim=True)
    shape = [*x.shape[:-dims], *counts]
    return operation.finished([tensor.gather(-1, best).view(shape) for tensor in (read, place)])


def columns_to_image(operation: Operation) -> list[Any]:
    """Compute ``aten::col2im`` (fold, and unfold's backward): add the positions of the window one by one."""
    grad, size, kernel, dilation, padding, stride = operation.args[:6]
    dtype = operation.returned[0]
    if dtype not in LOW:
        return operation.once()
    steps = zip(size, kernel, dilation, padding, stride, strict=True)
    counts = [(whole + 2 * pad - gap * (sides - 1) - 1) // step + 1 for whole, sides, gap, pad, step in steps]
    parts = grad.reshape(*grad.shape[:-2], -1, *kernel, *counts)
    room = parts.new_zeros(*parts.shape[:-4], *(whole + 2 * pad for whole, pad in zip(size, padding, strict=True)))
    for row, column in itertools.product(*(range(sides) for sides in kernel)):
        first = (row * dilation[0], column * dilation[1])
        rows, columns = (
            slice(start, start + step * (count - 1) + 1, step)
            for start, step, count in zip(first, stride, counts, strict=True)
        )
        room[..., rows, columns] = operation.low(room[..., rows, columns] + parts[..., row, column, :, :], dtype)
    rows, columns = (slice(pad, pad + whole) for whole, pad in zip(size, padding, strict=True))
    return operation.finished([room[..., rows, columns]])


def _summed(operation: Operation, values: Tensor, targets: Tensor, size: int) -> Tensor:
    """Add the ``values`` of each row to their ``targets`` in a row of ``size`` sums, rounding every addition."""
    rows = values.shape[0]
    first = torch.arange(rows, device=targets.device).view(-1, 1) * size
    total = accumulate_sequentially(
        operation, values.new_zeros(rows * size), (first + targets).flatten(), values.flatten()
    )
    return total.view(rows, size)
