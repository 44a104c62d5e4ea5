"""check_training finds gradients that are added to those of a step, and accepts loops that step several times."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import Iteration
from pytest_amp.scaler.iteration import Train
from tests.check.models import back
from tests.training.test_any_loss import train

pytestmark = pytest.mark.usefixtures("one_thread")
BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])


def forward(iteration: Iteration) -> torch.Tensor:
    with iteration.autocast():
        logits = iteration.model(iteration.batch["x"], iteration.batch["at"])
        return functional.cross_entropy(logits, iteration.batch["y"])


def take(iteration: Iteration, parts: int = 1) -> None:
    back(iteration.scaler.scale(forward(iteration) / parts))
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def each_part(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    for _ in range(4):
        take(iteration, 4)


@BOTH
def test_step_for_each_part_of_an_accumulated_gradient_is_named(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="iteration 1: gradients are added to those of a step in the same") as raised:
        train(each_part, precision=precision, steps=3)
    line = take.__code__.co_firstlineno
    assert raised.match(rf"line .*test_accumulation\.py:({line + 1}|{line + 2})\b")


def two_steps(iteration: Iteration) -> None:
    for _ in range(2):
        iteration.optimizer.zero_grad(set_to_none=False)
        back(forward(iteration))
        iteration.optimizer.step()


def passes_between(iteration: Iteration) -> None:
    """Step twice; between the steps a loss of another model leaves gradients, which are zeroed."""
    for _ in range(2):
        iteration.optimizer.zero_grad()
        back(forward(iteration))
        iteration.optimizer.step()
        back(forward(iteration))


def accumulates(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    for _ in range(2):
        back(forward(iteration) / 2)
    iteration.optimizer.step()


@pytest.mark.parametrize("step", [two_steps, passes_between, accumulates])
def test_steps_that_begin_without_gradients_are_accepted(step: Train) -> None:
    train(step, steps=3)
