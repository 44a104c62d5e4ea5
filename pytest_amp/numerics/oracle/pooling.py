"""Float64 formulas of average pooling that sums and divides in the low dtype: adaptive 3d forward, and backward."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import LOW, Operation

#: Number of pooled dimensions of the backward of adaptive pooling, by overload.
ADAPTIVE = {"aten::_adaptive_avg_pool2d_backward": 2, "aten::_adaptive_avg_pool3d_backward": 3}


def adaptive_forward(operation: Operation) -> list[Any]:
    """Compute ``aten::_adaptive_avg_pool3d`` on a CPU, which rounds every partial sum and every quotient.

    See adaptive_avg_pool3d_out_frame in aten/src/ATen/native/AdaptiveAveragePooling3d.cpp.
    """
    x, counts = operation.args[:2]
    dtype = operation.returned[0]
    if dtype not in LOW:
        return operation.once()
    result = x.new_zeros([*x.shape[:-3], *counts])
    for place, window in _windows(x.shape[-3:], counts):
        window_values = x[window].flatten(-3)
        total = torch.zeros_like(window_values[..., 0])
        for values in window_values.unbind(-1):
            total = operation.low(total + values, dtype)
        result[place] = _divided(operation, total, window[1:])
    return operation.finished([result])


def adaptive_backward_cpu(operation: Operation) -> list[Any]:
    """Compute ``aten::_adaptive_avg_pool2d_backward`` and 3d on a CPU: divide by the window's sizes, first to last.

    See cpu_adaptive_avg_pool2d_backward in aten/src/ATen/native/cpu/AdaptiveAvgPoolKernel.cpp, and
    adaptive_avg_pool3d_backward_out_frame in aten/src/ATen/native/AdaptiveAveragePooling3d.cpp.
    """
    return _adaptive_backward(operation, first_to_last=True)


def adaptive_backward_cuda(operation: Operation) -> list[Any]:
    """Compute ``aten::_adaptive_avg_pool2d_backward`` and 3d on CUDA, which uses atomics for overlapping windows.

    adaptive_average_gradinput and similar kernels in aten/src/ATen/native/cuda/AdaptiveAveragePooling.cu divide by the
    window's sizes from last to first; atomicadaptiveaveragegradinput in AdaptiveAveragePooling3d.cu, in the same
    folder, divides from first to last.
    """
    grad, x = operation.args[:2]
    dims = ADAPTIVE[operation.name]
    uneven = any(size % count for size, count in zip(x.shape[-dims:], grad.shape[-dims:], strict=True))
    return _adaptive_backward(operation, first_to_last=dims == 3 and uneven)


def _adaptive_backward(operation: Operation, *, first_to_last: bool) -> list[Any]:
    """Compute the backward of adaptive pooling, rounding every quotient and every accumulation into the gradient."""
    grad, x = operation.args[:2]
    dims, dtype = ADAPTIVE[operation.name], operation.returned[0]
    result = torch.zeros_like(x)
    for place, window in _windows(x.shape[-dims:], grad.shape[-dims:]):
        share = _divided(operation, grad[place], window[1:] if first_to_last else window[:0:-1])
        total = result[window] + share.view(*share.shape, *[1] * dims)
        result[window] = operation.low(total, dtype)
    return operation.finished([result])


Index = tuple[Any, ...]


def _windows(sizes: torch.Size, counts: Any) -> Iterator[tuple[Index, Index]]:
    """Yield the index of each output of adaptive pooling, and the index of its window, each after an ellipsis."""
    for place in itertools.product(*(range(count) for count in counts)):
        window = (
            slice(index * size // count, -(-(index + 1) * size // count))
            for index, size, count in zip(place, sizes, counts, strict=True)
        )
        yield (..., *place), (..., *window)


def _divided(operation: Operation, values: Tensor, window: Index) -> Tensor:
    """Divide ``values`` by each size of ``window`` in order, rounding every quotient."""
    for side in window:
        values = operation.low(values / (side.stop - side.start), operation.returned[0])
    return values


def average_backward_cpu(operation: Operation) -> list[Any]:
    """Compute ``aten::avg_pool2d_backward`` on a CPU, which rounds each window's share and every accumulation.

    See cpu_avg_pool2d_backward in aten/src/ATen/native/cpu/AvgPoolKernel.cpp.
    """
    return _average_backward(operation, sums_are_low=True)


def average_backward_cuda(operation: Operation) -> list[Any]:
    """Compute ``aten::avg_pool2d_backward`` on CUDA, which rounds each window's share, and their sum once at the end.

    See avg_pool2d_backward_out_cuda_frame in aten/src/ATen/native/cuda/AveragePool2d.cu.
    """
    return _average_backward(operation, sums_are_low=False)


def _average_backward(operation: Operation, *, sums_are_low: bool) -> list[Any]:
    grad, x = operation.args[:2]
    dtype, (kernel, stride, padding) = operation.returned[0], (_pair(operation.argument(at, "")) for at in (2, 3, 4))
    stride = stride or kernel
    if dtype not in LOW or not any(size > step for size, step in zip(kernel, stride, strict=True)):
        return operation.once()
    with_padding, divisor = operation.argument(6, "count_include_pad"), operation.argument(7, "divisor_override")
    result = torch.zeros_like(x)
    for i in range(grad.shape[-2]):
        for j in range(grad.shape[-1]):
            sides, count = [], 1
            for place, size, step, pad, length in zip((i, j), kernel, stride, padding, x.shape[-2:], strict=True):
                start, stop = place * step - pad, min(place * step - pad + size, length + pad)
                sides.append(slice(max(start, 0), min(stop, length)))
                count *= stop - start if with_padding else sides[-1].stop - sides[-1].start
            share = operation.low(grad[..., i, j] / (divisor or count), dtype)
            rows, columns = sides
            total = result[..., rows, columns] + share[..., None, None]
            result[..., rows, columns] = operation.low(total, dtype) if sums_are_low else total
    return operation.finished([result])


def _pair(value: Any) -> tuple[int, ...]:
    """Expand a single size to both dimensions; return an empty tuple for an empty argument."""
    pair = tuple(value)
    return pair * 2 if len(pair) == 1 else pair
