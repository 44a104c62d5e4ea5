"""Explicit dtype arguments keep their meaning, in a region or in none, also where inductor rewrites the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .programs import OTHER, Ran, Tensors, expect_same_dtypes

_ROWS, _COLUMNS = 4, 8
#: Each of these is exact on small integers in either low-precision dtype, in any order of evaluation.
_OPERATORS: Mapping[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "cumsum": lambda x, dtype: x.cumsum(1, dtype=dtype),
    "cumprod": lambda x, dtype: x.cumprod(1, dtype=dtype),
    "sum": lambda x, dtype: x.sum(1, dtype=dtype),
    "prod": lambda x, dtype: x.prod(1, dtype=dtype),
    "to": lambda x, dtype: x.to(dtype),
}


def _dtypes(low: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the dtypes of inputs: integers are promoted, floating-point values are not."""
    return torch.bool, torch.int64, torch.float32, OTHER[low]


def _expect_same(amp: SuiteAmp, what: str, names: list[str], actual: Tensors, expected: Tensors) -> None:
    expect_same_dtypes(amp, what, Ran(actual, []), Ran(expected, []))
    wrong = [n for n, a, b in zip(names, actual, expected, strict=True) if not torch.equal(a, b)]
    if wrong:
        raise AmpFailure(
            f"{what} on {amp.target.id} differs from eager, although every result is exact",
            now=f"{', '.join(wrong[:4])}, on torch {torch.__version__}",
            likely="inductor's replacement of the operator computes in a different dtype, and rounds",
        )


def test_operators_give_the_dtype_that_is_asked_for(amp: SuiteAmp, needs: Callable[[str], str]) -> None:
    """Sums, products and conversions of integers and floating-point values, in a region of the other dtype."""
    device_type, low = amp.device.type, amp.dtype
    inputs = [
        torch.randint(0, 3, (_ROWS, _COLUMNS), device=amp.device.torch_device).to(dtype) for dtype in _dtypes(low)
    ]

    def function(inputs: Tensors) -> Tensors:
        with torch.autocast(device_type, OTHER[low]):
            return [operator(x, low) for operator in _OPERATORS.values() for x in inputs]

    names = [f"{name} of {x.dtype}" for name in _OPERATORS for x in inputs]
    expected = function(inputs)
    assert {value.dtype for value in expected} == {low}
    actual = torch.compile(function, backend=needs("inductor"), fullgraph=True)(inputs)
    _expect_same(amp, "operators with a dtype argument", names, actual, expected)


def test_a_running_sum_of_a_constant_has_the_dtype_that_is_asked_for(
    amp: SuiteAmp, needs: Callable[[str], str]
) -> None:
    """Count positions by a cumulative sum: inductor makes a range of the constant's dtype (pytorch/pytorch#189518)."""
    device, low = amp.device.torch_device, amp.dtype

    def function() -> Tensors:
        constants = [torch.full((_ROWS, _COLUMNS), 1, dtype=dtype, device=device) for dtype in _dtypes(low)]
        return [constant.cumsum(1, dtype=low) for constant in constants]

    names = [f"cumsum of {dtype}" for dtype in _dtypes(low)]
    actual = torch.compile(function, backend=needs("inductor"), fullgraph=True)()
    _expect_same(amp, "a running sum of a constant", names, actual, function())
