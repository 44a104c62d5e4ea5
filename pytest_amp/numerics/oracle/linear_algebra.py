"""Comparison of factorizations, solvers and functions of matrices with float64.

The error of these operators is that of one float32 rounding times the condition number of the matrix, whatever the
kernel does (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 7.1; Functions of
Matrices, SIAM 2008, chapter 3). Random factors (``sums.other_numbers``) leave a matrix badly conditioned whose scales
differ, such as the block matrix in the backward pass of ``matrix_exp``, one of whose blocks is the incoming gradient
times the loss scale. Therefore the kernel is measured again on a matrix whose condition number is small.

The sign of a singular vector, and of an eigenvector, is arbitrary: LAPACK's differs between float32 and float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_amp.numerics.oracle.sums import other_numbers

#: Starts of the names of the operators whose error is in proportion to a condition number.
_OPERATORS = (
    *("aten::linalg_", "aten::_linalg_", "aten::cholesky", "aten::lu_", "aten::triangular_solve"),
    *("aten::matrix_exp", "aten::geqrf", "aten::ormqr", "aten::_compute_linear_combination"),
)
#: Starts of the names of those among them that add products of elements.
_ELEMENTWISE = ("aten::linalg_vector_norm", "aten::linalg_vecdot", "aten::linalg_cross")
#: Sum of the absolute values beside the diagonal of a row, as a share of the difference of two of its elements.
_BESIDE = 0.25
_DIMENSIONS_OF_A_MATRIX = 2
#: Indices of the results that have vectors of arbitrary sign as columns, and as rows.
_VECTORS: dict[str, tuple[int, int | None]] = {"aten::_linalg_svd": (0, 2), "aten::_linalg_eigh": (1, None)}


def other_values(operator: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return values of the shape and dtype of ``tensor`` on which an operator's error is that of its kernel."""
    depends_on_conditioning = operator.startswith(_OPERATORS) and not operator.startswith(_ELEMENTWISE)
    if depends_on_conditioning and tensor.dim() >= _DIMENSIONS_OF_A_MATRIX:
        return well_conditioned(tensor, generator)
    return other_numbers(tensor, generator)


def well_conditioned(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return matrices of the shape of ``tensor``, with separate eigenvalues and singular values of about 1 to 2.

    The diagonal rises from 1 to 2. The remaining elements are random, so small that they do not close the gap between
    two elements of the diagonal, and not symmetric: an operator that takes a symmetric matrix reads one half of it.
    """
    rows, columns = tensor.shape[-2:]
    steps = max(min(rows, columns), 2)
    noise = 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu") - 1
    matrices = noise * (_BESIDE / steps / max(rows, columns))
    diagonal = 1 + torch.arange(min(rows, columns), dtype=torch.float64, device="cpu") / steps
    matrices.diagonal(dim1=-2, dim2=-1).copy_(diagonal.expand(*tensor.shape[:-2], -1))
    result = torch.empty_like(tensor)
    result.copy_(matrices)
    return result


def with_signs_of(measured: Sequence[Any], results: list[Any], operator: str) -> list[Any]:
    """Return float64 ``results`` of an operator with the signs that the vectors of its measured results have.

    A column and a row of a singular value decomposition change their signs together. Complex vectors, whose phase is
    arbitrary, are returned as they are.
    """
    columns, rows = _VECTORS.get(operator.partition(".")[0], (None, None))
    if columns is None or results[columns].is_complex() or not measured[columns].numel():
        return results
    vectors = results[columns]
    products = (vectors * measured[columns].to(vectors.dtype)).sum(-2, keepdim=True)
    signs = torch.where(products < 0, -1.0, 1.0).to(vectors.dtype)
    signed = [*results]
    signed[columns] = vectors * signs
    if rows is not None:
        count = min(signs.shape[-1], results[rows].shape[-2])
        paired, unpaired = results[rows][..., :count, :], results[rows][..., count:, :]
        signed[rows] = torch.cat([paired * signs.mT[..., :count, :], unpaired], -2)
    return signed
