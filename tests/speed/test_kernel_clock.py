"""The whole check on a CPU, with a clock without noise: a kernel takes a second, and a cast is a kernel.

A test fails if autocast casts more than necessary.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.precision import LOW
from pytest_amp.speed import Demand, Plan, SpeedConditions, check_speedup, step_of, training_step
from pytest_amp.torch_private import recorded_calls

#: Number of uses of the weight: cast once and cached, it costs one kernel for as many products.
USES = 8


class KernelClock:
    """Clock of one second for each kernel that a call launches, so that real time is negligible."""

    name = "kernels"

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        seconds = []
        for _ in range(timings):
            with recorded_calls() as calls:
                for _ in range(repeats):
                    call()
            seconds.append(len(calls) / repeats)
        return seconds


def conditions(precision: str) -> SpeedConditions:
    return SpeedConditions(find_device("cpu"), LOW[precision], "gate")


@pytest.mark.parametrize("precision", sorted(LOW))
def test_products_are_cast_no_more_than_needed(request: pytest.FixtureRequest, precision: str) -> None:
    """Run eight products in float32; under autocast with two casts before them."""

    def products() -> Callable[[], torch.Tensor]:
        x, weight = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)

        def call() -> torch.Tensor:
            y = x
            for _ in range(USES):
                y = y @ weight
            return y

        return call

    demand = Demand("products", 0.78, "fp32", plan=Plan(warm_up=0))
    measured = check_speedup(lambda: step_of(products), demand, conditions(precision), request, clock=KernelClock())
    assert measured is not None
    assert measured.verdict.interval.median == pytest.approx(USES / (USES + 2))


@pytest.mark.parametrize("precision", sorted(LOW))
def test_training_step_is_cast_no_more_than_needed(request: pytest.FixtureRequest, precision: str) -> None:
    """Run forward and backward of one shared layer: the gradients of its uses are added before the cast back."""
    layer = torch.nn.Linear(4, 4, bias=False)

    def loss(model: torch.nn.Module, batch: object) -> torch.Tensor:
        y = batch
        for _ in range(USES):
            y = model(y)
        assert isinstance(y, torch.Tensor)
        return y.float().sum()

    step = training_step(layer, torch.randn(4, 4), loss)
    demand = Demand("shared layer", 0.85, "fp32", plan=Plan(warm_up=0))
    measured = check_speedup(lambda: step, demand, conditions(precision), request, clock=KernelClock())
    assert measured is not None
    assert measured.verdict.interval.median < 1
