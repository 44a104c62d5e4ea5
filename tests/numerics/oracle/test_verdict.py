"""Faults of an operator: each bound from both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_amp.numerics import tolerance
from pytest_amp.numerics.oracle.models import Model, ModelName
from pytest_amp.numerics.oracle.module_places import Direction, Place
from pytest_amp.numerics.oracle.observer import Agreement, ObservedCall
from pytest_amp.numerics.oracle.sums import most_of_float32, probable
from pytest_amp.numerics.oracle.verdict import EXCESS, SHARE, SHARE_EXCESS, fault_of_result, faults

BF16, FP16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32
LOW = Agreement(BF16, BF16, elements=1000, equal=1000, error=1e-3, ideal=1e-3, hollow=False)
WIDE = Agreement(FLOAT32, FLOAT32, elements=1000, equal=1000, error=1e-7, ideal=0.0, hollow=False)


def observed(
    result: Agreement,
    name: ModelName = ModelName.ONCE,
    factor: float = 1.0,
    longest: int = 1,
    input_dtype: torch.dtype = BF16,
) -> ObservedCall:
    place = Place("layer", Direction.FORWARD, "aten::linear")
    return ObservedCall(place, "aten::mm", (input_dtype,), Model(name, factor=factor), (result,), None, longest)


def fault_text(
    result: Agreement, call: ObservedCall | None = None, *, low: torch.dtype = BF16, scale: float = 1.0
) -> str | None:
    actual = fault_of_result(call or observed(result), result, low, scale)
    return None if actual is None else actual.what


def likely_of(result: Agreement) -> str:
    actual = fault_of_result(observed(result), result, BF16, 1.0)
    assert actual is not None
    return actual.likely


def test_bounds_lie_between_healthy_and_faulty_measurements() -> None:
    """Healthy kernels had up to 1.17; two equal roundings have sqrt(2), and differ in a quarter of the elements."""
    assert 1.17 < EXCESS < 2**0.5
    assert 0.75 < SHARE < 1.0 < SHARE_EXCESS <= 1.05


def test_result_that_follows_its_model_is_no_fault() -> None:
    assert fault_text(LOW) is fault_text(WIDE) is None


def test_result_in_an_unexpected_dtype_is_a_fault() -> None:
    assert fault_text(replace(WIDE, expected_dtype=BF16)) == "returned float32"
    assert fault_text(replace(WIDE, expected_dtype=None)) is None  # the kernel decides


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_error_beyond_the_model_is_a_fault(factor: float) -> None:
    """Operators that are known to round more often may have a larger error."""
    bound = factor * EXCESS * LOW.ideal
    call = observed(LOW, factor=factor)
    assert fault_text(replace(LOW, error=0.99 * bound), call) is None
    assert (
        fault_text(replace(LOW, error=1.01 * bound), call)
        == f"has {1.01 * bound / LOW.ideal:.3g} times the error of its model"
    )
    assert fault_text(replace(LOW, error=1.9 * bound), call, scale=2.0) is None


def test_error_of_few_elements_is_bounded_by_one_rounding() -> None:
    exact = replace(LOW, ideal=0.0, elements=1, equal=1)
    least = tolerance.floor(1, 2.0**-8)
    assert fault_text(replace(exact, error=1.2 * least)) is None
    assert fault_text(replace(exact, error=1.3 * least)) is not None


def test_low_share_of_equal_elements_is_a_fault() -> None:
    """Judge a share if the error is slightly larger, of enough elements, and with a model of its elements."""
    few = replace(LOW, equal=int(SHARE * 1000) - 10, error=1.01 * SHARE_EXCESS * LOW.ideal)
    assert fault_text(few) == "equals its model in 89% of its elements"
    assert fault_text(replace(few, equal=int(SHARE * 1000) + 10)) is None
    assert fault_text(replace(few, error=0.99 * SHARE_EXCESS * LOW.ideal)) is None
    assert fault_text(replace(few, elements=60, equal=40)) is None
    assert fault_text(few, observed(few, ModelName.UNMODELLED)) is None
    assert fault_text(few, scale=2.0) is None


@pytest.mark.parametrize("low", [BF16, FP16])
def test_float32_result_with_a_low_precision_error_is_a_fault(low: torch.dtype) -> None:
    most = most_of_float32(low)
    assert fault_text(replace(WIDE, error=0.99 * most), low=low) is None
    assert (
        fault_text(replace(WIDE, error=1.01 * most), low=low) == f"returned float32 with an error of {1.01 * most:.2g}"
    )
    assert fault_text(replace(WIDE, error=1.9 * most), low=low, scale=2.0) is None


def test_float32_result_of_low_sums_has_the_error_of_its_model() -> None:
    """The result has the error of its model, and a little more."""
    retained = replace(WIDE, ideal=0.01)
    assert fault_text(replace(retained, error=0.0124)) is None
    assert fault_text(replace(retained, error=0.013)) is not None
    small = replace(WIDE, ideal=0.5 * most_of_float32(BF16))
    assert fault_text(replace(small, error=1.49 * most_of_float32(BF16))) is None
    assert fault_text(replace(small, error=1.51 * most_of_float32(BF16))) is not None


def test_hollow_result_is_a_fault() -> None:
    hollow = replace(WIDE, hollow=True)
    assert fault_text(hollow) == "returned float32 with values of bfloat16 alone"
    running = ModelName.RUNNING_SUM
    assert fault_text(hollow, observed(hollow, running)) is None  # its model has low-precision sums
    assert fault_text(hollow, observed(hollow, running, input_dtype=FLOAT32)) is not None


def test_error_that_other_numbers_do_not_show_is_no_fault() -> None:
    bad = replace(LOW, error=2 * EXCESS * LOW.ideal)
    assert fault_text(replace(bad, again=LOW)) is None
    assert fault_text(replace(bad, again=bad)) is not None
    off = replace(WIDE, error=1.5 * most_of_float32(FP16))
    long = 1 << 20
    assert probable(long) > off.error
    assert fault_text(replace(off, again=off), observed(off, longest=long), low=FP16) is None
    assert fault_text(replace(off, again=off), low=FP16) is not None
    assert fault_text(off, observed(off, longest=long), low=FP16) is not None  # nothing was computed from other values


def test_faults_are_sorted_worst_first() -> None:
    share = replace(LOW, equal=500, error=1.1 * LOW.ideal)
    kinds = [
        share,
        replace(LOW, error=1.0),
        replace(WIDE, error=1.0),
        replace(WIDE, hollow=True),
        replace(WIDE, expected_dtype=BF16),
    ]
    actual = [fault.what for fault in faults((observed(kind) for kind in kinds), BF16)]
    assert [what.split(" ")[0] for what in actual] == ["returned", "returned", "returned", "has", "equals"]
    assert actual[0] == "returned float32"
    assert actual[1] == "returned float32 with values of bfloat16 alone"


def test_fault_names_operator_and_place() -> None:
    (fault,) = faults([observed(replace(WIDE, expected_dtype=BF16))], BF16)
    assert (fault.operator, fault.place) == ("mm (of linear)", "layer, forward pass")


def test_large_errors_are_attributed_to_a_wrong_kernel() -> None:
    """An error of the size of the result is one, too, or an accumulation of many terms or of terms that cancel."""
    assert likely_of(replace(LOW, error=50.0)).endswith("reads or writes memory outside of its arguments")
    assert likely_of(replace(LOW, error=1.0)).startswith("the kernel is wrong on this machine, or accumulates many")
    assert likely_of(replace(LOW, error=1.0, ideal=0.5)).startswith("the operator rounds intermediate results")
    assert likely_of(replace(LOW, error=2e-3)).startswith("the operator rounds intermediate results")
