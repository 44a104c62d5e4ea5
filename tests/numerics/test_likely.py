"""Likely causes that failures name are the real ones."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.dtypes import check_dtypes
from pytest_amp.precision import BF16
from tests.numerics.test_check_gradients import run
from tests.observing import unheeded

CPU = Conditions(find_device("cpu"), BF16)


def test_tolerance_below_the_rounding_is_the_likely_cause() -> None:
    with pytest.raises(AmpFailure, match=r"likely +the tolerance: the predicted rounding alone is 0\.00"):
        run(mlp(), tolerance=1e-4)


def test_unseeded_random_numbers_are_the_likely_cause() -> None:
    case = Case(
        "thrown",
        lambda: nn.Linear(16, 4),
        lambda: torch.randn(8, 16),
        lambda model, batch: model(batch).square().mean() * random.SystemRandom().uniform(1, 100),
    )
    with pytest.raises(AmpFailure, match=r"likely +two runs of the step in float32 differ: random numbers"):
        run(case)


def test_non_finite_batch_is_the_likely_cause() -> None:
    case = Case("nan", lambda: nn.Linear(4, 4), lambda: torch.full((2, 4), torch.nan), lambda m, x: m(x).sum())
    with pytest.raises(AmpFailure, match=r"nan is not finite in float32, without autocast") as raised:
        run(case)
    assert raised.match(r"likely +the model, its batch or its loss")


def test_low_input_of_a_module_without_rules_is_the_likely_cause() -> None:
    """LayerNorm has no rule on a CPU."""
    with pytest.raises(AmpFailure, match=r"likely +it was given bfloat16: its operators have no rule here"):
        check_dtypes(mlp(), CPU, {"3": torch.float32}, unheeded)


class Halves(nn.Module):
    """Module that casts its input, in the middle of a model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a low-precision tensor, whatever the input."""
        return x.bfloat16()


def test_module_that_casts_is_the_likely_cause() -> None:
    case = Case(
        "casts", lambda: nn.Sequential(nn.Identity(), Halves()), lambda: torch.randn(2, 4), lambda m, x: m(x).sum()
    )
    with pytest.raises(
        AmpFailure, match=r"likely +it was given float32: an operator in it runs in bfloat16 .*, or the model casts"
    ):
        check_dtypes(case, CPU, {"1": torch.float32}, unheeded)
