"""Float64 formulas of matrix products that are rounded before an addition, or whose sums are split into parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.oracle.operation import LOW, Operation


def outer(operation: Operation) -> list[Any]:
    """Compute ``aten::addr``, which multiplies and adds in the low dtype and rounds each result.

    See addr_kernel in aten/src/ATen/native/cpu/LinearAlgebraKernel.cpp and cuda/LinearAlgebra.cu.
    """
    added, a, b = operation.args[:3]
    dtype = operation.returned[0]
    beta, alpha = (operation.low_number(operation.kwargs.get(name, 1)) for name in ("beta", "alpha"))
    product = operation.low(operation.low(alpha * a, dtype)[:, None] * b, dtype)
    return operation.finished([operation.low(beta * added, dtype) + product])


def trilinear(operation: Operation) -> list[Any]:
    """Compute ``aten::_trilinear``, which ``bilinear`` calls: round the product of two tensors before the third factor.

    The operator processes the slices along ``unroll_dim`` one by one. If a tensor is not in the low dtype, autocast
    inside the operator determines the roundings; the result is then rounded once. See _trilinear and sumproduct_pair in
    aten/src/ATen/native/Linear.cpp.
    """
    tensors, expanded, summed = operation.args[:3], operation.args[3:6], set(operation.args[6])
    dtype = operation.returned[0]
    if dtype not in LOW or any(input_dtype != dtype for input_dtype in operation.given[:3]):
        return operation.once()
    unrolled = operation.argument(7, "unroll_dim")
    unrolled = 1 if unrolled is None else unrolled
    letters = {dim: chr(ord("a") + dim) for dim in range(tensors[0].dim() + len(expanded[0]))}
    first, second, third = (
        "".join(letter for dim, letter in letters.items() if dim not in expanded_dims) for expanded_dims in expanded
    )
    # Dimensions that the third tensor does not have are summed in the product of the first two.
    summed_first = {letters[dim] for dim in letters if dim in summed and dim in expanded[2] and dim != unrolled}
    pair_dims = "".join(sorted({*first, *second} - summed_first))
    pair = operation.low(torch.einsum(f"{first},{second}->{pair_dims}", *tensors[:2]), dtype)
    result_dims = "".join(letter for dim, letter in letters.items() if dim not in summed)
    if unrolled not in summed:
        return operation.finished([torch.einsum(f"{pair_dims},{third}->{result_dims}", pair, tensors[2])])
    parts = torch.einsum(f"{pair_dims},{third}->{letters[unrolled]}{result_dims}", pair, tensors[2])
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = operation.low(total + operation.low(part, dtype), dtype)
    return operation.finished([total])


def product_in_two_steps(operation: Operation) -> list[Any]:
    """Compute ``aten::addmm``, ``addmv`` and ``baddbmm`` with the product rounded before the addition."""
    added, a, b = operation.args[:3]
    beta, alpha = operation.kwargs.get("beta", 1), operation.kwargs.get("alpha", 1)
    product = operation.low(a @ b, operation.returned[0])
    return operation.finished([beta * added + alpha * product])


def batch_by_batch(operation: Operation, *, step: torch.dtype | None = None) -> list[Any]:
    """Compute ``aten::addbmm``: the products of pairs of matrices are added sequentially, and each sum is rounded.

    Products are rounded to ``step`` first, unless it is None. See addbmm_impl_ in
    aten/src/ATen/native/LinearAlgebra.cpp.
    """
    total, a, b = operation.args[:3]
    dtype = operation.returned[0]
    if dtype not in LOW or not a.shape[0]:
        return operation.once()
    beta, alpha = operation.kwargs.get("beta", 1), operation.kwargs.get("alpha", 1)
    for left, right in zip(a, b, strict=True):
        total = operation.low(beta * total + alpha * operation.low(left @ right, step), dtype)
        beta = 1  # applies to the initial addend only
    return operation.finished([total.expand(a.shape[1], b.shape[2])])


def batch_by_batch_in_two_steps(operation: Operation) -> Iterator[list[Any]]:
    """Yield the alternative of ``batch_by_batch`` in which cuBLAS rounds each product, too."""
    yield batch_by_batch(operation, step=operation.returned[0])


#: Number of elements above which the product of a low-precision matrix and a vector runs in oneDNN, if it has kernels
#: for the dtype on this CPU: use_mkldnn_matmul in aten/src/ATen/native/mkldnn/Matmul.cpp.
ONEDNN_ELEMENTS = 4096
_PRECISIONS: dict[torch.dtype | None, str] = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def matrix_and_vector(operation: Operation) -> list[Any]:
    """Compute ``aten::addmv`` on a CPU without oneDNN, which rounds the factors alpha and beta, and the scaled addend.

    If the kernel iterates over columns, it rounds the product, too. See gemv in
    aten/src/ATen/native/cpu/BlasKernel.cpp.
    """
    added, a, b = operation.args[:3]
    dtype = operation.returned[0]
    precision = _PRECISIONS.get(dtype)
    if precision and a.numel() > ONEDNN_ELEMENTS and torch_private.cpu_has_onednn_kernels(precision):
        return operation.once()
    beta, alpha = (operation.low_number(operation.kwargs.get(name, 1)) for name in ("beta", "alpha"))
    product, added = alpha * (a @ b), beta * added
    if a.stride(0) == 1:
        product = operation.low(product, dtype)
    elif dtype == torch.float16 and alpha == 1:  # fp16_gemv_trans in the same file
        return operation.finished([added + product])
    return operation.finished([operation.low(added, dtype) + product])


#: cuBLAS computes results whose last dimension is a multiple of this by its kernels for aligned memory.
ALIGNED = 8


def product_and_sum(operation: Operation) -> list[Any]:
    """Compute ``aten::addmm``, ``addmv`` and ``baddbmm`` in the way that cuBLAS uses most often (see ``models.toml``).

    The epilogue of cuBLASLt adds a bias of one dimension in float32: see addmm_out_cuda_impl in
    aten/src/ATen/native/cuda/Blas.cpp.
    """
    added, a, b = operation.args[:3]
    columns = a.shape[0] if b.dim() == 1 else b.shape[-1]
    epilogue = a.dim() == 2 and b.dim() == 2 and added.dim() < 2
    return operation.once() if epilogue or columns % ALIGNED else product_in_two_steps(operation)


def in_two_steps(operation: Operation) -> Iterator[list[Any]]:
    """Yield the alternative with two roundings."""
    yield product_in_two_steps(operation)


def once(operation: Operation) -> Iterator[list[Any]]:
    """Yield the alternative with one rounding."""
    yield operation.once()


#: Numbers of parts into which cuBLAS may split a sum, the usual ones first. The largest number depends on the GPU.
PARTS = (2, 4, 8, 16, *(parts for parts in range(3, 65) if parts not in {4, 8, 16}))
#: Number of terms in a part in cuBLAS's kernels for a few unaligned columns; no part is smaller.
FEW_TERMS = 8
#: Tile sizes of cuBLAS's kernels: the number of terms in a part is rounded up to a multiple of one of them.
TILES = (1, 16, 32, 64, 128)
#: Number of products of two elements up to which all numbers of parts are tried, not only the usual ones. cuBLAS splits
#: the 50257 terms of a gradient of GPT-2's embeddings (2**33 products) into 22 parts (H200, torch 2.11).
FEW_PRODUCTS = 2**36
#: Number of leading entries of ``PARTS`` that are tried for products of any size.
_USUAL = 4


def in_parts(operation: Operation) -> Iterator[list[Any]]:
    """Yield ``aten::mm``, or ``aten::addmm`` with a bias of one dimension, of unaligned matrices with split sums.

    For each number of terms in a part there are two alternatives:

    - Each part is rounded, and then their sum.
    - The running sum is rounded after each part, as when one block of the kernel continues from the result that the
      previous one stored. It starts with the bias: all elements of layers with 12 columns are equal in this order, and
      0.75 to 0.78 of them if the bias is added last (bf16, H200, torch 2.11).

    Nothing is yielded if torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction (for fp16, its counterpart)
    is off.
    """
    *added, a, b = operation.args[: 3 if operation.name.startswith("aten::addmm") else 2]
    dtype = operation.returned[0]
    if any(tensor.dim() != 1 for tensor in added):
        return
    flags = torch.backends.cuda.matmul
    reduced = {
        torch.bfloat16: flags.allow_bf16_reduced_precision_reduction,
        torch.float16: flags.allow_fp16_reduced_precision_reduction,
    }
    aligned = not any(size % ALIGNED for size in (*a.shape, b.shape[1]))
    if aligned or not reduced.get(dtype or torch.float32):
        return
    for size in _terms_of_a_part(a.shape[1], a.shape[0] * a.shape[1] * b.shape[1]):
        parts = [x @ y for x, y in zip(torch.split(a, size, 1), torch.split(b, size, 0), strict=True)]
        yield operation.finished([sum(added, torch.stack([operation.low(part, dtype) for part in parts]).sum(0))])
        running = sum(added, parts[0])
        for part in parts[1:]:
            running = operation.low(running, dtype) + part
        yield operation.finished([running])


def _terms_of_a_part(terms: int, products: int) -> list[int]:
    """Return the numbers of terms that a part of a sum of ``terms`` may have, the most usual ones first.

    ``products`` is the number of products of two elements in the whole matrix product.
    """
    sizes = [FEW_TERMS, *(math.ceil(terms / parts) for parts in PARTS[:_USUAL])]
    if products <= FEW_PRODUCTS:
        sizes += [math.ceil(math.ceil(terms / parts) / tile) * tile for parts in PARTS for tile in TILES]
    return [size for size in dict.fromkeys(sizes) if FEW_TERMS <= size < terms <= size * PARTS[-1]]
