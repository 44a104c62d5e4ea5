"""What goes back through an average pool: shares of windows that overlap, added up in the dtype."""

from __future__ import annotations

from typing import Any

import torch

from pytest_amp.numerics.oracle.operation import LOW, Operation


def adaptive_backward_cpu(operation: Operation) -> list[Any]:
    """``aten::_adaptive_avg_pool2d_backward`` on a CPU, which divides by height and then by width.

    cpu_adaptive_avg_pool2d_backward in aten/src/ATen/native/cpu/AdaptiveAvgPoolKernel.cpp.
    """
    return _adaptive_backward(operation, height_first=True)


def adaptive_backward_cuda(operation: Operation) -> list[Any]:
    """``aten::_adaptive_avg_pool2d_backward`` on CUDA, which divides by width and then by height.

    adaptive_average_gradinput in aten/src/ATen/native/cuda/AdaptiveAveragePooling.cu.
    """
    return _adaptive_backward(operation, height_first=False)


def _adaptive_backward(operation: Operation, *, height_first: bool) -> list[Any]:
    """Each window's share is rounded after either division, and each sum of windows."""
    grad, x = operation.args[:2]
    dtype = operation.returned[0]
    result = torch.zeros_like(x)
    for i in range(grad.shape[-2]):
        for j in range(grad.shape[-1]):
            rows, columns = _window(i, x.shape[-2], grad.shape[-2]), _window(j, x.shape[-1], grad.shape[-1])
            sides = (rows.stop - rows.start, columns.stop - columns.start)
            first, second = sides if height_first else sides[::-1]
            share = operation.low(operation.low(grad[..., i, j] / first, dtype) / second, dtype)
            result[..., rows, columns] = operation.low(result[..., rows, columns] + share[..., None, None], dtype)
    return operation.finished([result])


def _window(index: int, size: int, count: int) -> slice:
    """What an adaptive pool of ``count`` results averages for one of them."""
    return slice(index * size // count, -(-(index + 1) * size // count))


def average_backward_cpu(operation: Operation) -> list[Any]:
    """``aten::avg_pool2d_backward`` on a CPU: each window's share is rounded, and each sum of windows that overlap.

    cpu_avg_pool2d_backward in aten/src/ATen/native/cpu/AvgPoolKernel.cpp.
    """
    return _average_backward(operation, sums_are_low=True)


def average_backward_cuda(operation: Operation) -> list[Any]:
    """``aten::avg_pool2d_backward`` on CUDA: each window's share is rounded, and their sum once, at its end.

    avg_pool2d_backward_out_cuda_frame in aten/src/ATen/native/cuda/AveragePool2d.cu.
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
    """One size for both dimensions, or one for each; nothing where none is given."""
    given = tuple(value)
    return given * 2 if len(given) == 1 else given
