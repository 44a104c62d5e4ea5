"""Float64 formulas of convolutions that round more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import Operation

#: Overloads of the same computation; the caller determines which of them runs.
NAMES = ("convolution", "_convolution", "_convolution.deprecated")


def in_two_steps(operation: Operation) -> list[Any]:
    """Compute ``aten::convolution`` and ``_convolution`` by cuDNN, rounded after the convolution and the bias."""
    x, weight, bias, *rest = operation.args
    by_plane = rest[5] == x.shape[1] > 1 and x.is_contiguous()  # aten's own kernel, which adds the bias in float32
    if bias is None or not operation.rounds or by_plane:
        return operation.once()
    product = operation.low(operation.overload(x, weight, None, *rest, **operation.kwargs), operation.returned[0])
    return operation.finished([product + bias.view(1, -1, *[1] * (product.dim() - 2))])


#: Function that adds a product of two matrices to a sum.
Add = Callable[[Tensor, Tensor, Tensor], Tensor]


def over_time(operation: Operation) -> list[Any]:
    """Compute ``aten::conv_tbc``: add one product for each position of the window to the bias, rounding every sum.

    See conv_tbc in aten/src/ATen/native/ConvolutionTBC.cpp.
    """
    return _over_time(operation, _added(operation))


def over_time_in_two_steps(operation: Operation) -> Iterator[list[Any]]:
    """Yield the alternative of ``over_time`` in which each product is rounded before it is added."""
    yield _over_time(operation, _added_low(operation))


def over_time_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::conv_tbc_backward``: products as in ``over_time``, bias summed over time, then batch."""
    return _over_time_backward(operation, _added(operation))


def over_time_backward_in_two_steps(operation: Operation) -> Iterator[list[Any]]:
    """Yield the alternative of ``over_time_backward`` in which each product is rounded before it is added."""
    yield _over_time_backward(operation, _added_low(operation))


def _added(operation: Operation) -> Add:
    return lambda total, a, b: operation.low(total + a @ b, operation.returned[0])


def _added_low(operation: Operation) -> Add:
    dtype = operation.returned[0]
    return lambda total, a, b: operation.low(total + operation.low(a @ b, dtype), dtype)


def _places(length: int, out_length: int, width: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield each position of the window, the input's time steps that it reads, and the output's that it writes."""
    pad = (out_length - length + width - 1) // 2
    for place in range(width):
        first, to = max(0, place - pad), max(0, pad - place)
        count = min(length + pad - place, out_length) - to
        if count > 0:
            yield place, slice(first, first + count), slice(to, to + count)


def _over_time(operation: Operation, add: Add) -> list[Any]:
    x, weight, bias = operation.args[:3]
    pad = operation.argument(3, "pad") or 0
    out_length = x.shape[0] - weight.shape[0] + 1 + 2 * pad
    result = bias.expand(out_length, x.shape[1], weight.shape[2]).clone()
    for place, window, written in _places(x.shape[0], out_length, weight.shape[0]):
        result[written] = add(result[written], x[window], weight[place])
    return operation.finished([result])


def _over_time_backward(operation: Operation, add: Add) -> list[Any]:
    grad, x, weight, bias = operation.args[:4]
    of_input, of_weight = torch.zeros_like(x), torch.zeros_like(weight)
    for place, window, written in _places(x.shape[0], grad.shape[0], weight.shape[0]):
        of_input[window] = add(of_input[window], grad[written], weight[place].mT)
        rows = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (x[window], grad[written]))
        of_weight[place] = add(of_weight[place], next(rows).mT, next(rows))
    of_bias = operation.low(grad.sum(0), operation.returned[2]).sum(0).view_as(bias)
    return operation.finished([of_input, of_weight, of_bias])
