"""Float64 formulas of CPU kernels that add gradients up in the low dtype, in the order of what comes in.

Where windows overlap, or a border is read more than once, an element has several gradients, and each is added to what
is there: cpu_max_pool_backward in aten/src/ATen/native/cpu/MaxPoolKernel.cpp, cpu_avg_pool2d_backward in
AvgPoolKernel.cpp, cpu_padding_backward in PaddingKernel.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pytest_amp.numerics.oracle.meetings import in_turn
from pytest_amp.numerics.oracle.operation import LOW, Operation

#: By the place of the indices of what was taken among the arguments.
BY_INDICES = {
    "aten::max_pool2d_with_indices_backward": 7,
    "aten::max_pool3d_with_indices_backward": 7,
    "aten::adaptive_max_pool2d_backward": 2,
    "aten::adaptive_max_pool3d_backward": 2,
}
#: By mode and number of dimensions.
PADDING = {
    f"aten::{name}_pad{dims}d_backward": (mode, dims)
    for name, mode in (("reflection", "reflect"), ("replication", "replicate"))
    for dims in (1, 2, 3)
}


def taken_backward(operation: Operation) -> list[Any]:
    """Going back through a maximum: to the element that was taken."""
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
    """Going back through a border: to the element that was read there."""
    grad, x, padding = operation.args[:3]
    mode, dims = PADDING[operation.name]
    if operation.returned[0] not in LOW:
        return operation.once()
    own = x.shape[-dims:]
    numbers = torch.arange(math.prod(own), dtype=torch.float64, device=x.device).view(1, 1, *own)
    read = functional.pad(numbers, list(padding), mode=mode).reshape(1, -1).to(torch.int64)
    rows = math.prod(x.shape[:-dims])
    given = grad.reshape(rows, -1)
    return operation.finished([_summed(operation, given, read.expand_as(given), numbers.numel()).view_as(x)])


def _summed(operation: Operation, values: Tensor, targets: Tensor, size: int) -> Tensor:
    """Rows of ``size`` sums: of each row's ``values`` to their ``targets``, one after the other, each sum rounded."""
    rows = values.shape[0]
    first = torch.arange(rows, device=targets.device).view(-1, 1) * size
    total = in_turn(operation, values.new_zeros(rows * size), (first + targets).flatten(), values.flatten())
    return total.view(rows, size)
