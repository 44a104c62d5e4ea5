"""Steps that compute something else each time are red: the difference of two runs would pass as rounding."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.precision import BF16
from tests.observing import unheeded


def check_repeatable(case: Case) -> None:
    check_gradients(case, Conditions(find_device("cpu"), BF16), unheeded)


def scaled(factor: Callable[[], float | torch.Tensor]) -> Case:
    """Return the mlp with its output scaled by another ``factor()`` in each run."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = case.build()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            return out * factor()

    case = mlp(width=32)
    return replace(case, build=Scaled)


@pytest.mark.parametrize("size", [0.02, 0.1])
def test_unseeded_random_numbers_are_red(size: float) -> None:
    numbers = random.Random(0)  # noqa: S311
    with pytest.raises(AmpFailure, match="random numbers that torch does not seed"):
        check_repeatable(scaled(lambda: 1 + size * numbers.gauss(0, 1)))


def test_state_that_outlives_the_step_is_red() -> None:
    """The runs differ by little relative to their size, and by far more than rounding."""
    runs = iter(range(20, 1000))
    with pytest.raises(AmpFailure, match="the step computes something else each time under autocast"):
        check_repeatable(scaled(lambda: next(runs)))


def test_random_numbers_seeded_by_torch_pass() -> None:
    check_repeatable(scaled(lambda: 1 + 0.1 * torch.rand(())))
