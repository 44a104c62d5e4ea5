"""Float32 errors of a badly conditioned matrix are no low precision, and low-precision kernels are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pytest_amp.numerics.oracle import verdict
from pytest_amp.numerics.oracle.linear_algebra import well_conditioned, with_signs_of
from pytest_amp.numerics.oracle.sums import most_of_float32
from tests.numerics.oracle.test_sums import DTYPES, low_terms, observed
from tests.numerics.planted import kernel

WIDTH = 6


def hilbert() -> Tensor:
    """Return a matrix whose condition number is 1.5e7."""
    row = torch.arange(WIDTH, dtype=torch.float64)
    return (1 / (row[:, None] + row + 1)).float().requires_grad_()


def right_hand_side() -> Tensor:
    return torch.arange(16.0 * WIDTH).sin().view(WIDTH, 16).requires_grad_()


def definite() -> Tensor:
    matrix = hilbert()
    return matrix @ matrix.mT + 1e-5 * torch.eye(WIDTH)


def symmetric_eigenvectors() -> Tensor:
    values, vectors = torch.linalg.eigh(hilbert() + hilbert().mT)
    result: Tensor = (vectors * values.abs().rsqrt()) @ vectors.mT
    return result


def exponential() -> Tensor:
    """Return a rotation whose incoming gradient has the loss scale of fp16."""
    generator = right_hand_side()[:, :WIDTH]
    return torch.matrix_exp(generator - generator.mT) * 65536


STEPS: dict[str, Callable[[], Tensor]] = {
    "_linalg_solve_ex": lambda: torch.linalg.solve(hilbert(), right_hand_side()),
    "linalg_inv_ex": lambda: torch.linalg.inv(hilbert()),
    "cholesky_solve": lambda: torch.cholesky_solve(right_hand_side(), torch.linalg.cholesky(definite())),
    "_linalg_eigh": symmetric_eigenvectors,
    "_linalg_svd": lambda: torch.linalg.svd(hilbert())[0] / torch.linalg.svdvals(hilbert())[-1],
    "linalg_qr": lambda: torch.linalg.qr(hilbert())[0],
    "_linalg_slogdet": lambda: torch.linalg.slogdet(hilbert())[1],
    "linalg_matrix_exp": exponential,
    "triangular_solve": lambda: torch.linalg.solve_triangular(
        torch.linalg.cholesky(definite()), right_hand_side(), upper=False
    ),
}


def both_passes(step: Callable[[], Tensor]) -> Callable[[], None]:
    def run() -> None:
        result = step()
        torch.autograd.backward(result, torch.ones_like(result))

    return run


@DTYPES
@pytest.mark.parametrize("operator", STEPS)
def test_error_of_a_badly_conditioned_matrix_is_no_fault(operator: str, dtype: torch.dtype) -> None:
    assert not verdict.faults(observed(both_passes(STEPS[operator]), dtype), dtype)


@pytest.mark.parametrize("operator", ["_linalg_solve_ex", "linalg_inv_ex", "linalg_matrix_exp"])
def test_error_of_a_badly_conditioned_matrix_exceeds_that_of_a_sum(operator: str) -> None:
    """Verify the premise of this file, and that the repeated measurement is within the bound."""
    calls = observed(both_passes(STEPS[operator]), torch.float16)
    most = most_of_float32(torch.float16)
    results = [result for call in calls if call.operator == f"aten::{operator}" for result in call.results]
    doubtful = [result for result in results if result.error > most]
    assert doubtful
    assert all(result.again is not None and result.again.error < most for result in doubtful)


@DTYPES
@pytest.mark.parametrize("operator", ["_linalg_solve_ex", "linalg_inv_ex", "linalg_matrix_exp"])
def test_kernel_of_low_terms_is_a_fault(operator: str, dtype: torch.dtype) -> None:
    with kernel(operator, low_terms(dtype)):
        calls = observed(both_passes(STEPS[operator]), dtype)
    assert {fault.operator for fault in verdict.faults(calls, dtype)} == {operator}


@pytest.mark.parametrize("shape", [(5, 5), (3, 8, 4), (2, 4, 8), (1, 1)])
def test_well_conditioned_matrices_have_separate_singular_values(shape: tuple[int, ...]) -> None:
    matrices = well_conditioned(torch.zeros(shape), torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(matrices.double())
    assert matrices.shape == shape
    assert 0.8 < float(values.min()) <= float(values.max()) < 2.1
    assert float(-values.diff(dim=-1).max() if values.shape[-1] > 1 else 1) > 0.4 / values.shape[-1]


@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)])
def test_signs_of_singular_vectors_are_arbitrary_in_pairs(shape: tuple[int, int]) -> None:
    matrix = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = [*torch.linalg.svd(matrix)]
    left, values, right = (result.clone() for result in exact)
    left[..., 1] *= -1
    right[..., 1, :] *= -1
    for actual, expected in zip(with_signs_of([left, values, right], exact, "aten::_linalg_svd"), exact, strict=True):
        assert torch.equal(actual.abs(), expected.abs())
    signed = with_signs_of([left, values, right], exact, "aten::_linalg_svd")
    assert torch.equal(signed[0], left)
    assert torch.equal(signed[2], right)
    unpaired = with_signs_of([left, values, exact[2]], exact, "aten::_linalg_svd")
    assert not torch.equal(unpaired[2], exact[2])
