"""Integer buffers are exact: their counts do not depend on a precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.precision import BF16
from tests.observing import unheeded

pytestmark = pytest.mark.usefixtures("one_thread")


class Counting(nn.Module):
    """Module that counts its calls, and those under autocast ``times``."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.linear = times, nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("calls").add_(self.times if torch.is_autocast_enabled("cpu") else 1)
        result: torch.Tensor = self.linear(x)
        return result


def counted(times: int) -> None:
    case = Case(
        "counting",
        lambda: Counting(times),
        lambda: torch.randn(4, 8),
        lambda model, x: model(x).float().square().mean(),
    )
    check_gradients(case, Conditions(find_device("cpu"), BF16), unheeded)


def test_a_count_is_the_same_under_autocast() -> None:
    counted(1)


def test_another_count_is_named() -> None:
    with pytest.raises(AmpFailure, match=r"calls.* is \[2, 2\], without autocast it is \[1, 1\]"):
        counted(2)


class Positions(nn.Module):
    """Module with a table that it casts to the dtype of its activations, and with ``update`` changes, too."""

    def __init__(self, *, update: bool) -> None:
        super().__init__()
        self.update, self.linear = update, nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(8.0).sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(x)
        table = self.get_buffer("table").to(hidden.dtype)
        self.table = table * 0.75 if self.update else table
        return hidden + self.table


def positioned(*, update: bool) -> None:
    case = Case(
        "positioned",
        lambda: Positions(update=update),
        lambda: torch.randn(4, 8),
        lambda model, x: model(x).float().square().mean(),
    )
    check_gradients(case, Conditions(find_device("cpu"), BF16), unheeded)


def test_table_that_a_model_casts_keeps_no_dtype() -> None:
    positioned(update=False)


def test_statistic_that_a_model_casts_is_named() -> None:
    with pytest.raises(AmpFailure, match=r"buffer table .* has dtype bfloat16, it should have float32"):
        positioned(update=True)
