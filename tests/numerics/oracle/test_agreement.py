"""Comparison of a real result with its model: equal elements, errors, and low-precision intermediate values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pytest_amp.numerics.oracle import observer as local
from pytest_amp.numerics.oracle import verdict
from pytest_amp.numerics.oracle.observer import Agreement, Observer
from pytest_amp.numerics.oracle.operation import FLOAT32_FLIPS
from tests.numerics.planted import kernel

LOW = torch.bfloat16


def agreement(real: torch.Tensor, predicted: torch.Tensor, exact: torch.Tensor | None = None) -> Agreement:
    """Return the agreement of ``real`` with float64 ``predicted`` and ``exact``, which defaults to the prediction."""
    return Observer("cpu", LOW)._agreement(real, predicted, predicted if exact is None else exact, real.dtype)


def test_low_elements_are_equal_bit_for_bit() -> None:
    values = torch.tensor([1.0, 2.0, 3.0], dtype=LOW)
    other = values.clone()
    other[0] += 2.0**-7
    assert agreement(values, values.double()).equal == 3
    assert agreement(other, values.double()).equal == 2


def test_nan_and_infinity_in_both_are_equal() -> None:
    values = torch.tensor([1.0, math.nan, math.inf], dtype=LOW)
    actual = agreement(values, values.double())
    assert (actual.equal, actual.error, actual.ideal) == (3, 0.0, 0.0)
    assert agreement(values, torch.tensor([1.0, 2.0, math.inf], dtype=torch.float64)).equal == 2


def test_float32_elements_tolerate_sums_in_another_order() -> None:
    """Tolerate float32 flips of the element's size, or of a typical one: a small sum among large ones cancels."""
    model = torch.ones(4, dtype=torch.float64)
    for part, equal in ((0.9, 4), (1.1, 3)):
        real = model.clone()
        real[0] *= 1 + part * FLOAT32_FLIPS
        assert agreement(real.float(), model).equal == equal
    model[0] = 0.0
    real = model.clone()
    real[0] = 0.8 * FLOAT32_FLIPS * (3 / 4) ** 0.5
    assert agreement(real.float(), model).equal == 4
    assert FLOAT32_FLIPS == 2.0**-18, "64 float32 roundings; one of fp16 is 2**-11"


def test_errors_are_relative_to_the_exact_values() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    actual = agreement((exact * 1.25).to(LOW), exact * 1.5, exact)
    assert [actual.error, actual.ideal] == pytest.approx([0.25, 0.5])
    zero = torch.zeros(2, dtype=torch.float64)
    assert agreement(torch.tensor([3.0, 4.0]), zero, zero).error == 5.0


def test_float32_result_of_low_values_is_hollow() -> None:
    exact = torch.linspace(1, 2, 100, dtype=torch.float64) / 3
    low = exact.to(LOW).float()
    assert agreement(low, exact).hollow
    assert not agreement(exact.float(), exact).hollow
    assert not agreement(low, low.double()).hollow  # the exact values are the predicted ones
    assert not agreement(low.to(LOW), exact).hollow  # a low dtype is not a hidden rounding
    few = torch.linspace(1, 2, 40, dtype=torch.float64) / 3
    assert not agreement(few.to(LOW).float(), few).hollow


def test_best_agreeing_rounding_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thirds of the elements agree with the first way of rounding by chance, all of them with the second."""
    x = torch.tensor([1.0, 2.0, 3.0], dtype=LOW)
    first, second = (x.double() + torch.tensor([0.0, 0.0, off], dtype=torch.float64) for off in (0.25, 0.0))
    monkeypatch.setattr(local, "evaluate_both", lambda _: ([second], iter([[first], [second]])))
    observer = Observer("cpu", LOW)
    with observer.on({}):
        torch.mul(x, 1)
    assert [result.equal for result in observer.observed_calls[0].results] == [3]


def cancelling() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a row and a column of bf16 with product 2**-18; its terms are up to 2**12, and lose some of their bits."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(512, generator=generator)
    row, column = ((12 * torch.rand(512, generator=generator) - 6).exp2().to(LOW) for _ in range(2))
    small = torch.tensor([2.0**-9], dtype=LOW)
    return torch.cat([row, row[order], small])[None], torch.cat([column, -column[order], small])[:, None]


def test_cancelling_low_sum_may_differ_by_a_float32_rounding() -> None:
    def in_float32(original: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        """Add the terms in their order, which cancels nothing early."""
        a, b = args
        return sum(a[0].float() * b[:, 0].float()).view(1, 1).to(LOW) if a.dtype == LOW else original(*args)

    observer = Observer("cpu", LOW)
    with kernel("mm", in_float32), observer.on({}):
        torch.mm(*cancelling())
    (observed,) = [call for call in observer.observed_calls if call.operator == "aten::mm"]
    assert observed.results[0].error > 0.02, "else nothing cancels here"
    assert verdict.faults([observed], LOW) == []


def test_cancelling_float32_sum_of_low_terms_is_a_fault() -> None:
    """Errors are relative to the terms, which are several times as large as the sum: fp16's rounding still shows."""

    def low_terms(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return original(*(x.half().float() if x.dtype == torch.float32 else x for x in args), **kwargs)

    generator = torch.Generator().manual_seed(0)
    observer = Observer("cpu", torch.float16)
    with kernel("mm", low_terms), observer.on({}):
        torch.mm(torch.randn(8, 16, generator=generator), torch.randn(16, 4, generator=generator))
    assert [fault.operator for fault in verdict.faults(observer.observed_calls, torch.float16)] == ["mm"]
