"""Float64 formulas of colliding updates: several values are accumulated into one element in the low dtype.

Every addition to a nonzero element rounds (``gpuAtomicAdd`` in aten/src/ATen/cuda/Atomic.cuh), so the error grows with
the number of colliding updates. The formulas apply the updates in the order of the arguments, as a CPU does; on CUDA
the order is nondeterministic. A different order gives an independent draw of the same error: the number of bitwise
equal elements cannot be predicted, and the norms of the two errors differ by at most the factor ``spread``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics import tolerance
from pytest_amp.numerics.oracle.operation import LOW, Operation
from pytest_amp.numerics.oracle.vector_remainders import in_vectors


def spread(errors: Tensor) -> float:
    """Return the largest plausible ratio between the norms of two independent draws of ``errors``.

    It is ``tolerance.spread`` of the effective number of elements, (sum of e^2)^2 / (sum of e^4): the number of
    elements if all errors have the same magnitude, a third of it if they are normally distributed, and one if a single
    element has nearly all of the error. If all errors are zero, the ratio is 1. A fault exceeds it twice: the call is
    repeated.
    """
    squares = errors.square()
    fourth = float(squares.square().sum())
    return tolerance.spread(float(squares.sum()) ** 2 / fourth) if fourth > 0 else 1.0


def index_add(operation: Operation) -> list[Any]:
    """Compute ``aten::index_add``, which multiplies by ``alpha`` in the low dtype.

    See aten/src/ATen/native/cuda/Indexing.cu.
    """
    x, dim, index = operation.args[:3]
    return _added(operation, x, lambda numbers: numbers.index_select(dim, index), _times_alpha(operation))


def index_add_cpu(operation: Operation) -> list[Any]:
    """Compute ``aten::index_add`` on a CPU, in a wider dtype or by sequential, rounded additions.

    If ``alpha`` is 1, the kernel is scatter_add, which accumulates in a wider dtype along the first and the last
    dimension. Otherwise ``add`` is called for each row, which rounds the products with ``alpha`` in vector remainders
    only. See index_add_cpu_out in aten/src/ATen/native/TensorAdvancedIndexing.cpp.
    """
    x, dim, index, source = operation.args[:4]
    dtype, alpha = operation.returned[0], operation.argument(4, "alpha")
    if dtype not in LOW or not operation.rounds:
        return operation.once()
    plain = alpha in (None, 1)
    if plain and x.dim() > 1 and dim % x.dim() in (0, x.dim() - 1):
        return operation.finished([x.index_add(dim, index, source)])
    values = _times_alpha(operation)
    row = source.movedim(dim, 0)[:1]
    if not plain and x.dim() > 1 and row.is_contiguous() and x.movedim(dim, 0)[:1].is_contiguous():
        whole = torch.arange(row.numel(), device=x.device).view_as(row) < in_vectors(row.numel())
        values = torch.where(whole.movedim(0, dim), source * operation.low_number(alpha), values)
    return _added(operation, x, lambda numbers: numbers.index_select(dim, index), values)


def _times_alpha(operation: Operation) -> Tensor:
    """Return ``alpha * source``; in a low dtype both ``alpha`` and the product are rounded."""
    source, alpha, dtype = operation.args[3], operation.argument(4, "alpha"), operation.returned[0]
    if dtype not in LOW or alpha in (None, 1):
        return source  # type: ignore[no-any-return]
    return operation.low(source * operation.low_number(alpha), dtype)


def scatter_add(operation: Operation) -> list[Any]:
    """Compute ``aten::scatter_add`` and ``scatter_reduce`` as in aten/src/ATen/native/cuda/ScatterGatherKernel.cu."""
    x, dim, index, source = operation.args[:4]
    used = source[tuple(slice(size) for size in index.shape)]
    return _reduced(operation, x, lambda numbers: numbers.gather(dim, index), used)


def index_reduce(operation: Operation) -> list[Any]:
    """Compute ``aten::index_reduce``.

    See aten/src/ATen/native/cuda/Indexing.cu, and for the CPU aten/src/ATen/native/TensorAdvancedIndexing.cpp.
    """
    x, dim, index, source = operation.args[:4]
    return _reduced(operation, x, lambda numbers: numbers.index_select(dim, index), source)


def scatter_mean_cpu(operation: Operation) -> list[Any]:
    """Compute ``aten::scatter_reduce`` on a CPU, which rounds the sum of a mean before the division.

    scatter_reduce_two in aten/src/ATen/native/TensorAdvancedIndexing.cpp.
    """
    x, dim, index, source, reduce = operation.args[:5]
    dtype, alone = operation.returned[0], operation.argument(5, "include_self") is False
    if dtype not in LOW or reduce != "mean":
        return operation.once()
    count = torch.zeros_like(x) if alone else torch.ones_like(x)
    count = count.scatter_add(dim, index, torch.ones_like(source)).clamp_min(1)
    start = x.scatter(dim, index, 0.0) if alone else x
    total = operation.low(start.scatter_add(dim, index, source), dtype)
    return operation.finished([total / operation.low(count, dtype)])


def index_put(operation: Operation) -> list[Any]:
    """Compute ``aten::index_put`` with ``accumulate``.

    indexing_backward_kernel in aten/src/ATen/native/cuda/Indexing.cu.
    """
    x, indices, source = operation.args[:3]
    if not operation.argument(3, "accumulate"):
        return operation.once()
    return _added(operation, x, lambda numbers: torch.ops.aten.index(numbers, indices), source)


def put(operation: Operation) -> list[Any]:
    """Compute ``aten::put`` with ``accumulate``: aten/src/ATen/native/cuda/IndexKernel.cu."""
    x, index, source = operation.args[:3]
    if not operation.argument(3, "accumulate"):
        return operation.once()
    return _added(operation, x, lambda numbers: numbers.take(index), source.reshape(index.shape))


def unfold_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::unfold_backward``: aten/src/ATen/native/cuda/UnfoldBackwardKernel.cu."""
    grad, shape, dim, size, step = operation.args[:5]
    x = grad.new_zeros(list(shape))
    return _added(operation, x, lambda numbers: numbers.unfold(dim, size, step), grad)


FORMULAS = {
    **{f"aten::index_add{end}": index_add for end in ("", "_")},
    **{f"aten::scatter_add{end}": scatter_add for end in ("", "_")},
    **{f"aten::scatter_reduce{end}.two": scatter_add for end in ("", "_")},
    **{f"aten::index_reduce{end}": index_reduce for end in ("", "_")},
    **{f"aten::{name}": index_put for name in ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")},
    **{f"aten::put{end}": put for end in ("", "_")},
    "aten::unfold_backward": unfold_backward,
}


def _added(operation: Operation, x: Tensor, read: Any, source: Tensor) -> list[Any]:
    """Add each element of ``source`` to the element of ``x`` that ``read`` selects for it, rounding every sum."""
    dtype = operation.returned[0]
    if dtype not in LOW or not operation.rounds:
        return operation.once()
    targets = read(torch.arange(x.numel(), device=x.device).view(x.shape)).flatten()
    values = source.expand(read(x).shape).flatten()
    return operation.finished([accumulate_sequentially(operation, x.flatten().clone(), targets, values).view(x.shape)])


#: Binary function that combines colliding updates, by reduction.
JOINS: dict[str, Callable[..., Tensor]] = {"sum": torch.add, "mean": torch.add, "prod": torch.mul}


def _reduced(operation: Operation, x: Tensor, read: Any, source: Tensor) -> list[Any]:
    """Combine each element of ``source`` with its element of ``x``; divide a mean by its count, in the low dtype."""
    reduce = operation.args[4] if "reduce" in operation.name else "sum"
    dtype, alone = operation.returned[0], operation.argument(5, "include_self") is False
    if reduce not in JOINS or dtype not in LOW or not operation.rounds:
        return operation.once()
    targets = read(torch.arange(x.numel(), device=x.device).view(x.shape)).flatten()
    start, count = x.flatten().clone(), torch.ones_like(x.flatten())
    if alone:
        start[targets], count[targets] = (1.0 if reduce == "prod" else 0.0), 0.0
    values = source.expand(read(x).shape).flatten()
    total = accumulate_sequentially(operation, start, targets, values, JOINS[reduce])
    if reduce == "mean":
        total = total / accumulate_sequentially(operation, count, targets, torch.ones_like(values)).clamp_min(1)
    return operation.finished([total.view(x.shape)])


def accumulate_sequentially(
    operation: Operation, total: Tensor, targets: Tensor, values: Tensor, join: Callable[..., Tensor] = torch.add
) -> Tensor:
    """Combine ``values`` with the elements of ``total`` at ``targets`` sequentially, rounding every result."""
    by_place = targets.argsort(stable=True)
    count = torch.bincount(targets, minlength=total.numel())
    first = count.cumsum(0) - count
    turn = torch.empty_like(targets)
    turn[by_place] = torch.arange(targets.numel(), device=total.device) - first[targets[by_place]]
    of_turn = turn.argsort(stable=True)
    for rows in torch.split(of_turn, torch.bincount(turn).tolist() if turn.numel() else [0]):
        places = targets[rows]
        total[places] = operation.low(join(total[places], values[rows]), operation.returned[0])
    return total
