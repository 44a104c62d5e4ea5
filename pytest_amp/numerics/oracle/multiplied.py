"""Float64 formulas of ``prod`` on a CPU, which rounds every partial product to the low dtype.

See prod_kernel_impl in aten/src/ATen/native/cpu/ReduceOpsKernel.cpp. For contiguous elements,
vectorized_inner_reduction in aten/src/ATen/native/cpu/Reduce.h accumulates four vectors lane by lane, multiplies the
four vectors, then their lanes, and finally the vector remainder. Strided elements are multiplied sequentially.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import LOW, Operation

#: Low-precision elements of a vector: these kernels use the width of AVX2 under AVX512, too, and without vectors.
LANES = 16


def by_vectors(operation: Operation) -> list[Any]:
    """Compute ``aten::prod`` and ``prod.dim_int``: contiguous elements by vectors, strided elements sequentially."""
    if not _is_kept_low(operation):
        return operation.once()
    rows, contiguous = _rows(operation)
    return _shaped(operation, _one_after_the_other(operation, _of_vectors(operation, rows) if contiguous else rows))


def sequential(operation: Operation) -> Iterator[list[Any]]:
    """Yield the products in other orders: all elements sequentially, and for ``aten::prod`` by vectors in each row."""
    if not _is_kept_low(operation):
        return
    yield _shaped(operation, _one_after_the_other(operation, _rows(operation)[0]))
    if operation.name == "aten::prod":
        rows = _of_vectors(operation, _factors(operation))
        yield _shaped(operation, _one_after_the_other(operation, rows.flatten()))


def _of_vectors(operation: Operation, rows: Tensor) -> Tensor:
    """Replace the elements of each row that fill blocks of four vectors by their product."""
    blocks = rows.shape[-1] // (4 * LANES)
    if not blocks:
        return rows
    whole = rows[..., : 4 * LANES * blocks].reshape(*rows.shape[:-1], blocks, 4, LANES)
    first, second, third, fourth = _one_after_the_other(operation, whole.movedim(-3, -1)).unbind(-2)
    lanes = _low(operation, _low(operation, first * second) * _low(operation, third * fourth))
    left = rows[..., 4 * LANES * blocks :]
    return torch.cat([_one_after_the_other(operation, lanes)[..., None], left], -1)


def _is_kept_low(operation: Operation) -> bool:
    x = operation.args[0]
    return operation.returned[0] in LOW and x.dim() > 0 and x.numel() > 0


def _factors(operation: Operation) -> Tensor:
    """Return the elements, rounded to the requested dtype before they are multiplied."""
    return _low(operation, operation.args[0])


def _rows(operation: Operation) -> tuple[Tensor, bool]:
    """Return the tensor with the reduced dimension last, and whether that dimension is contiguous.

    The product of all elements multiplies them in the order of their memory.
    """
    x = _factors(operation)
    if operation.name == "aten::prod":
        return x.permute(sorted(range(x.dim()), key=x.stride, reverse=True)).reshape(-1), True
    moved = x.movedim(operation.args[1], -1)
    return moved, moved.stride(-1) == 1


def _shaped(operation: Operation, result: Tensor) -> list[Any]:
    keeps_dimension = operation.name != "aten::prod" and operation.argument(2, "keepdim")
    return operation.finished([result.unsqueeze(operation.args[1]) if keeps_dimension else result])


def _low(operation: Operation, values: Tensor) -> Tensor:
    return operation.low(values, operation.returned[0])


def _one_after_the_other(operation: Operation, rows: Tensor) -> Tensor:
    total, *factors = rows.unbind(-1)
    for factor in factors:
        total = _low(operation, total * factor)
    return total
