"""Weights with rounded values: the failure names the line that writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16
from pytest_amp.training import Setup, TrainingIteration, check_training
from tests.observing import unheeded
from tests.training.test_kept_low import step

pytestmark = pytest.mark.usefixtures("one_thread")


def restored(iteration: TrainingIteration) -> None:
    step(iteration)
    if iteration.index == 1:
        state = {name: value.bfloat16() for name, value in iteration.model.state_dict().items()}
        iteration.model.load_state_dict(state)


class Rounding(torch.optim.SGD):
    """SGD that updates copies of the weights in bfloat16."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for weight in self.param_groups[0]["params"]:
            low = weight.bfloat16()
            low.sub_(weight.grad.bfloat16(), alpha=0.05)
            weight.copy_(low)


def cast(iteration: TrainingIteration) -> None:
    step(iteration)
    iteration.model.bfloat16()


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


WRONG: dict[str, tuple[Callable[[TrainingIteration], None], Any, Any, int, str]] = {
    "restored": (restored, sgd, restored, 4, "writes values that were rounded to bfloat16 into"),
    "update": (step, lambda weights: Rounding(weights, lr=0.05), Rounding.step, 6, "writes values that were rounded"),
    "cast": (cast, sgd, cast, 2, "casts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_line_that_writes_rounded_weights_is_named(name: str) -> None:
    train, optimizer, function, offset, says = WRONG[name]
    setup = Setup(mlp(), find_device("cpu"), BF16, steps=4, train=train, make_optimizer=optimizer)
    with pytest.raises(AmpFailure, match="a parameter or buffer is not in float32") as raised:
        check_training(setup, unheeded)
    code = getattr(function, "__wrapped__", function).__code__
    line = f"tests/training/test_written.py:{code.co_firstlineno + offset}"
    assert raised.value.site == line
    assert f"likely    {line} {says}" in str(raised.value)


class Averaging(nn.Module):
    """Network that assigns a buffer whose next value is computed in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 1)
        self.average: torch.Tensor
        self.register_buffer("average", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = (self.average.bfloat16() * 0.9 + x.mean(0).bfloat16() * 0.1).float()
        result: torch.Tensor = self.layer(x - self.average)
        return result


def test_line_that_computes_a_buffer_is_named_if_it_is_assigned() -> None:
    case = Case("averaging", Averaging, lambda: torch.randn(16, 64), lambda model, x: model(x).float().square().mean())
    setup = Setup(case, find_device("cpu"), BF16, steps=4, train=step, make_optimizer=sgd)
    with pytest.raises(AmpFailure, match="a parameter or buffer is not in float32") as raised:
        check_training(setup, unheeded)
    assert raised.value.site == f"tests/training/test_written.py:{Averaging.forward.__code__.co_firstlineno + 1}"
