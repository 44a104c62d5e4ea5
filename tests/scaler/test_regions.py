"""Record of the dtypes in which autocast is enabled during a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16
from pytest_amp.scaler import Iteration
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.regions import check_region, noted_in_backward
from pytest_amp.scaler.watched import WatchedScaler

CPU = find_device("cpu")


def iteration(*regions: torch.dtype) -> Iteration:
    """Return an iteration in which autocast was on in these dtypes."""
    model = nn.Linear(2, 2)
    scaler = WatchedScaler("cpu", 8.0, UpdateRule())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    actual = Iteration(model, None, optimizer, scaler, 0, mlp(), CPU, BF16)
    actual.regions |= {*regions}
    return actual


def refused() -> None:
    raise AssertionError("the step was taken once more")


def test_step_with_an_observed_region_is_not_repeated() -> None:
    check_region(iteration(torch.bfloat16), refused)


@pytest.mark.parametrize(
    ("regions", "now", "likely"),
    [
        ((), "autocast is never on", "the region is missing, disabled, or closed before the forward pass"),
        ((torch.float16,), "autocast is on in float16 only", "its own region with another dtype"),
    ],
)
def test_step_without_the_region_fails_with_its_dtypes(regions: tuple[torch.dtype, ...], now: str, likely: str) -> None:
    with pytest.raises(AmpFailure, match=r"computes nothing under autocast\(bfloat16\)") as raised:
        check_region(iteration(*regions), lambda: torch.ones(1) + 1)
    assert now in str(raised.value)
    assert likely in str(raised.value)


def test_region_within_the_step_is_found_by_repeating_it() -> None:
    def again() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            torch.ones(1).add(1)

    actual = iteration()
    check_region(actual, again)
    assert actual.regions == set(), "what was seen stays as it was"


def test_backward_is_observed_within_the_context_only() -> None:
    weight, observed = nn.Parameter(torch.ones(2)), set[torch.dtype]()
    with noted_in_backward("cpu", [weight], observed):
        torch.autograd.backward(weight.sum())
        assert observed == set()
    with torch.autocast("cpu", torch.bfloat16):
        torch.autograd.backward(weight.sum())
        assert observed == set()
        with noted_in_backward("cpu", [weight], observed):
            torch.autograd.backward(weight.sum())
    assert observed == {torch.bfloat16}


def test_region_in_another_dtype_is_reported_with_its_line() -> None:
    def again() -> None:
        with torch.autocast("cpu", torch.float16):
            torch.ones(1).add(1)

    line = again.__code__.co_firstlineno + 1
    with pytest.raises(AmpFailure, match="autocast is on in float16 only") as raised:
        check_region(iteration(), again)
    assert raised.match(rf"line +\S*test_regions\.py:{line}\b")
