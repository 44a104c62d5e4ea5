"""Float64 formulas of CPU kernels that compute whole vectors in float32, but vector remainders in the low dtype.

Vector remainders, strided elements, and all elements on a machine without vector kernels (the capability ``DEFAULT``)
are computed by ``cpu_kernel_vec``'s scalar function: vectorized_loop in aten/src/ATen/native/cpu/Loops.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import LOW, Operation

#: Number of low-precision elements that a loop processes at once: two AVX2 vectors. These kernels use AVX2 also under
#: AVX512 (torch 2.13: of 63 elements, the first 32 are rounded once).
AT_ONCE = 32


def lanes() -> int:
    """Return the number of low-precision elements of a vector, for kernels that are also compiled for AVX512."""
    return 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16


def in_vectors(count: int, at_once: int = AT_ONCE) -> int:
    """Return how many of ``count`` contiguous elements, starting with the first, are computed in vectors."""
    vectors = torch.backends.cpu.get_cpu_capability() in {"AVX2", "AVX512"}
    return count // at_once * at_once if vectors else 0


def _joined(
    operation: Operation, whole: Tensor, by_steps: Callable[[], Tensor], *, at_once: int = AT_ONCE
) -> list[Any]:
    """Combine ``whole`` for the elements that fill vectors with ``by_steps`` for the remainder."""
    gaps = any(_has_gaps(argument) for argument in operation.args if isinstance(argument, Tensor))
    filled = 0 if gaps else in_vectors(whole.numel(), at_once)
    if filled == whole.numel():
        return operation.finished([whole])
    parts = whole.flatten()[:filled], by_steps().flatten()[filled:]
    return operation.finished([torch.cat(parts).view_as(whole)])


def _has_gaps(tensor: Tensor) -> bool:
    """Return whether the elements of ``tensor`` have gaps in memory, in any order of its dimensions."""
    contiguous_stride = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != contiguous_stride:
            return True
        contiguous_stride *= size
    return False


def root(operation: Operation) -> list[Any]:
    """Compute ``aten::rsqrt``, whose root is rounded before the division in vector remainders only.

    rsqrt_kernel in aten/src/ATen/native/cpu/UnaryOpsKernel.cpp.
    """
    x = operation.args[0]
    if operation.returned[0] not in LOW:
        return operation.once()
    return _joined(operation, x.rsqrt(), lambda: _root_in_steps(operation))


def inverse_root(operation: Operation) -> list[Any]:
    """Compute ``aten::pow.Tensor_Scalar`` of -0.5, in bf16 as ``root`` does, with vectors as wide as the machine's.

    pow_tensor_scalar_kernel in aten/src/ATen/native/cpu/PowKernel.cpp, which is compiled for AVX512, too.
    """
    if operation.returned[0] != torch.bfloat16:
        return operation.once()
    whole = operation.args[0].rsqrt()
    return _joined(operation, whole, lambda: _root_in_steps(operation), at_once=2 * lanes())


def _root_in_steps(operation: Operation) -> Tensor:
    return 1 / operation.low(operation.args[0].sqrt(), operation.returned[0])


def root_in_steps(operation: Operation) -> Iterator[list[Any]]:
    """Yield all elements with a rounded root, as for strided elements."""
    if operation.returned[0] in LOW:
        yield operation.finished([_root_in_steps(operation)])


def multiple(operation: Operation) -> list[Any]:
    """Compute ``aten::add.Tensor`` and ``sub.Tensor``, whose multiple is rounded in vector remainders only.

    add_clamp and add_kernel in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp.
    """
    dtype = operation.returned[0]
    if dtype not in LOW or operation.kwargs.get("alpha", 1) == 1:
        return operation.once()
    return _joined(operation, operation.once()[0], lambda: _multiple_in_steps(operation))


def _multiple_in_steps(operation: Operation) -> Tensor:
    a, b = operation.args[:2]
    sign = 1 if operation.name.startswith("aten::add") else -1
    result: Tensor = a + sign * operation.low(operation.kwargs["alpha"] * b, operation.returned[0])
    return result


def multiple_in_steps(operation: Operation) -> Iterator[list[Any]]:
    """Yield all elements with a rounded multiple, as for strided elements."""
    if operation.returned[0] in LOW and operation.kwargs.get("alpha", 1) != 1:
        yield operation.finished([_multiple_in_steps(operation)])
