"""check_training takes a step with several optimizers, of which one overflows at the first scale and the other not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pytest_amp.cases import Case, MakeOptimizer
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import Iteration
from pytest_amp.scaler.iteration import Train
from pytest_amp.training import Setup, Trajectory, check_training
from tests.observing import unheeded

pytestmark = pytest.mark.usefixtures("one_thread")
BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])


class Halves(nn.Module):
    """Two classifiers of the same points; the gradients of the second overflow in float16 at a scale of 65536."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3))
        self.second = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3))


def points() -> dict[str, Tensor]:
    x = torch.randn(48, 12)
    return {"x": x, "y": x[:, :3].argmax(-1)}


def losses(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    assert isinstance(model, Halves)
    one, other = (cross_entropy(part(batch["x"]).float(), batch["y"]) for part in (model.first, model.second))
    return one, 64 * other


CASE = Case("halves", Halves, points, lambda model, batch: torch.stack(losses(model, batch)).sum())


def of_first(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters[:4], lr=0.5)


def train(
    step: Train, precision: Precision, *, case: Case = CASE, optimizer: MakeOptimizer = of_first, steps: int = 12
) -> Trajectory:
    setup = Setup(case, find_device("cpu"), precision, steps=steps, train=step, make_optimizer=optimizer)
    return check_training(setup, unheeded)[0]


def second(iteration: Iteration) -> torch.optim.Optimizer:
    assert isinstance(iteration.model, Halves)
    optimizer: torch.optim.Optimizer = iteration.kept.setdefault(
        "second", torch.optim.SGD(iteration.model.second.parameters(), lr=0.5 / 64)
    )
    return optimizer


def both(iteration: Iteration, *, zeroed: bool = True) -> Tensor:
    optimizers = iteration.optimizer, second(iteration)
    for optimizer in optimizers if zeroed else optimizers[:1]:
        optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    iteration.scaler.scale(loss).backward()
    for optimizer in optimizers:
        iteration.scaler.step(optimizer)
    iteration.scaler.update()
    return loss


@BOTH
def test_optimizer_that_skips_while_the_other_steps_is_accepted(precision: Precision) -> None:
    trajectory = train(both, precision)
    assert trajectory.losses[-1] < trajectory.losses[0] / 2
    assert not any(step.skipped for step in trajectory.steps)


@BOTH
def test_gradients_that_one_of_the_optimizers_does_not_zero_are_named(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="iteration 1: gradients are added to those of the iteration before") as raised:
        train(lambda iteration: both(iteration, zeroed=False), precision)
    assert raised.match("now +second.0.bias, second.0.weight")


def accumulates(iteration: Iteration) -> Tensor:
    with iteration.autocast():
        loss = iteration.loss()
    iteration.scaler.scale(loss / 2).backward()
    if iteration.index % 2:
        iteration.scaler.step(iteration.optimizer)
        iteration.scaler.update()
        iteration.optimizer.zero_grad()
    return loss


@BOTH
def test_accumulated_gradients_that_overflow_are_accumulated_again(precision: Precision) -> None:
    case = replace(CASE, loss=lambda model, batch: losses(model, batch)[1])
    train(accumulates, precision, case=case, optimizer=lambda p: torch.optim.SGD(p[4:], lr=0.5 / 64), steps=24)


def begins_the_second_later(iteration: Iteration) -> Tensor:
    other, is_late = second(iteration), iteration.index >= 6
    with iteration.autocast():
        early, late = losses(iteration.model, iteration.batch)
        loss = early + (late if is_late else 0 * late)
    iteration.scaler.scale(loss / 2).backward()
    if iteration.index % 2:
        iteration.scaler.step(iteration.optimizer)
        if is_late:
            iteration.scaler.step(other)
        iteration.scaler.update()
        iteration.optimizer.zero_grad()
        other.zero_grad()
    return early + late


@BOTH
def test_run_that_begins_again_has_no_stale_gradients(precision: Precision) -> None:
    train(begins_the_second_later, precision, steps=24)


class WithTable(Halves):
    """Model that casts a table to the dtype of its activations in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(-1, 1, 12))


def losses_with_a_table(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    assert isinstance(model, WithTable)
    assert isinstance(model.table, Tensor)
    x = nn.functional.linear(batch["x"], torch.eye(12))
    model.table = model.table.to(x.dtype)
    return torch.stack(losses(model, {**batch, "x": x + model.table})).sum()


@BOTH
def test_table_that_a_step_casts_may_be_cast_in_a_run_that_begins_again(precision: Precision) -> None:
    train(both, precision, case=replace(CASE, build=WithTable, loss=losses_with_a_table))


def updates_between(iteration: Iteration) -> Tensor:
    other = second(iteration)
    iteration.optimizer.zero_grad()
    other.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    iteration.scaler.scale(loss).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()
    iteration.scaler.step(other)
    iteration.scaler.update()
    return loss


def test_update_between_a_backward_pass_and_its_step_is_named() -> None:
    with pytest.raises(AmpFailure, match=r"scaler\.update comes between the backward pass and the step of 4 par"):
        train(updates_between, FP16)
