"""Distances, and rounding of intermediate values."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_amp.numerics import is_hollow, relative_error
from pytest_amp.numerics.errors import FIRST, hollow_dtype


def test_relative_error_is_a_ratio_of_norms() -> None:
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])) == pytest.approx(1 / math.sqrt(18))


def test_relative_error_is_computed_in_float64() -> None:
    """Float32 sums of squares would overflow, and lose the difference."""
    big = torch.full((4,), 1e30)
    assert relative_error(big * (1 + 1e-6), big) == pytest.approx(1e-6, rel=0.1)


def test_relative_error_accepts_different_dtypes() -> None:
    one = torch.tensor([1.0, 2.0])
    assert relative_error(one.to(torch.bfloat16), one.double()) == 0.0


def test_relative_error_against_zero_is_infinite_without_a_scale() -> None:
    zero = torch.zeros(3)
    assert relative_error(zero, zero) == 0.0
    assert relative_error(torch.ones(3), zero) == math.inf
    assert relative_error(torch.ones(4), torch.zeros(4), scale=8.0) == pytest.approx(0.25)


def test_relative_error_of_nan_is_infinite() -> None:
    assert relative_error(torch.tensor([math.nan]), torch.ones(1)) == math.inf


def test_relative_error_refuses_different_shapes() -> None:
    with pytest.raises(ValueError, match=r"shapes \[2\] and \[3\] differ"):
        relative_error(torch.ones(2), torch.ones(3))


def test_relative_error_of_complex_numbers_has_both_parts() -> None:
    assert relative_error(torch.tensor([3 + 5j]), torch.tensor([3 + 4j])) == pytest.approx(0.2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_of_a_low_dtype_are_hollow(dtype: torch.dtype) -> None:
    values = torch.randn(500)
    assert is_hollow(values, dtype) is False
    assert is_hollow(values.to(dtype).float(), dtype) is True
    assert is_hollow(values.to(dtype).double(), dtype) is True


def test_few_distinct_values_are_not_judged() -> None:
    assert is_hollow(torch.ones(1000), torch.bfloat16) is None
    assert is_hollow(torch.arange(64).float(), torch.bfloat16) is None  # zero does not count
    assert is_hollow(torch.arange(1, 65).float(), torch.bfloat16) is True
    rounded = torch.cat([torch.zeros(500), torch.full((500,), math.inf), torch.randn(10)])
    assert is_hollow(rounded, torch.bfloat16) is None


def test_equal_leading_values_do_not_hide_later_ones() -> None:
    values = torch.cat([torch.ones(5000), torch.randn(500)])
    assert is_hollow(values, torch.bfloat16) is False
    assert is_hollow(values.bfloat16().float(), torch.bfloat16) is True


def test_tensor_with_one_unrounded_value_is_not_hollow() -> None:
    values = torch.randn(500).to(torch.bfloat16).float()
    values[7] = 1 + 2.0**-20
    assert is_hollow(values, torch.bfloat16) is False


def test_hollow_dtype_is_the_first_that_represents_all_values() -> None:
    low = torch.bfloat16, torch.float16
    values = torch.randn(2 * FIRST)
    assert hollow_dtype(values, low) is None
    assert hollow_dtype(values.half().float(), low) is torch.float16
    rounded = values.bfloat16().float()
    assert hollow_dtype(rounded, low) is torch.bfloat16
    assert hollow_dtype(torch.cat([torch.tensor([math.nan, math.inf]), rounded]), low) is torch.bfloat16
    # The first values alone do not decide.
    assert hollow_dtype(torch.cat([rounded, values]), low) is None
    assert hollow_dtype(torch.cat([torch.zeros(FIRST), rounded]), low) is torch.bfloat16
    assert hollow_dtype(rounded[:40], low) is None
    assert hollow_dtype(torch.complex(rounded, rounded), low) is torch.bfloat16
    assert hollow_dtype(torch.complex(rounded, values), low) is None
