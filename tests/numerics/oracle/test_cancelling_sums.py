"""Sums whose terms cancel: what float32 leaves of them is neither an error nor a rounding to the low dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_amp.numerics.oracle import verdict
from pytest_amp.numerics.oracle.observer import ObservedCall, Observer
from tests.numerics.oracle.test_sums import DTYPES
from tests.numerics.planted import kernel


def normalized(rows: int, width: int) -> Tensor:
    """Return rows of columns whose mean is zero up to float32's rounding."""
    values = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    return values - values.mean(0, keepdim=True)


def scattered(values: Tensor) -> Tensor:
    """Return the sum of all rows, which ``scatter_add_`` adds into a tensor of zeros."""
    index = torch.zeros(values.shape, dtype=torch.int64)
    return values.new_zeros(1, values.shape[1]).scatter_add_(0, index, values)


def added(values: Tensor) -> Tensor:
    """Return the same sum from ``index_add_``."""
    return values.new_zeros(1, values.shape[1]).index_add_(0, torch.zeros(len(values), dtype=torch.int64), values)


def calls_of(operator: str, observer: Observer) -> list[ObservedCall]:
    calls = [call for call in observer.observed_calls if call.operator == f"aten::{operator}"]
    assert calls, operator
    return calls


IN_PLACE = {"scatter_add_": scattered, "index_add_": added}


@DTYPES
@pytest.mark.parametrize("operator", IN_PLACE)
def test_sum_in_place_may_cancel_in_float32(operator: str, dtype: torch.dtype) -> None:
    """The mean of normalized rows, as a pool over the nodes of a graph computes it, is float32's rounding alone."""
    values = normalized(200, 16)
    observer = Observer("cpu", dtype)
    with observer.on({}):
        result = IN_PLACE[operator](values)
    exact = values.double().sum(0)
    assert (result - exact).norm() > 0.1 * exact.norm(), "else nothing cancels here"
    assert not verdict.faults(calls_of(operator, observer), dtype)


@DTYPES
@pytest.mark.parametrize("operator", IN_PLACE)
def test_cancelling_sum_in_place_of_low_terms_is_a_fault(operator: str, dtype: torch.dtype) -> None:
    def low_terms(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        *rest, values = args
        terms = values.to(dtype).to(values.dtype) if values.dtype == torch.float32 else values
        return original(*rest, terms, **kwargs)

    observer = Observer("cpu", dtype)
    with kernel(operator, low_terms), observer.on({}):
        IN_PLACE[operator](normalized(200, 16))
    assert [fault.operator for fault in verdict.faults(observer.observed_calls, dtype)] == [operator]


def gradient_of_softmax() -> Tensor:
    """Return the gradient of a softmax's input, whose rows of 64 values sum to zero up to float32's rounding."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 64, 64, generator=generator).requires_grad_()
    weights = torch.randn(x.shape, generator=generator)
    (gradient,) = torch.autograd.grad((x.softmax(-1) * weights).sum(), x)
    return gradient


def test_few_bits_of_a_cancelled_sum_are_no_rounding() -> None:
    """The gradient of the largest score that is subtracted from a row: bf16 represents every value that is left."""
    gradient = gradient_of_softmax()
    observer = Observer("cpu", torch.bfloat16)
    with observer.on({}):
        gradient.sum(-1)
    calls = calls_of("sum.dim_IntList", observer)
    assert calls[0].results[0].hollow, "else the values that are left have more bits than bf16"
    assert not verdict.faults(calls, torch.bfloat16)


def test_planted_rounding_of_a_cancelled_sum_is_a_fault() -> None:
    def low_result(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result.bfloat16().float() if result.dtype == torch.float32 else result

    gradient = gradient_of_softmax()
    observer = Observer("cpu", torch.bfloat16)
    with kernel("sum.dim_IntList", low_result), observer.on({}):
        gradient.sum(-1)
    assert [fault.operator for fault in verdict.faults(observer.observed_calls, torch.bfloat16)] == ["sum.dim_IntList"]
