"""check_training takes a step with several optimizers, of which one overflows at the first scale and the other not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pytest_amp.cases import Case
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


def train(step: Train, precision: Precision) -> Trajectory:
    case = Case("halves", Halves, points, lambda model, batch: torch.stack(losses(model, batch)).sum())
    trajectory, _ = check_training(
        Setup(
            case,
            find_device("cpu"),
            precision,
            steps=12,
            train=step,
            make_optimizer=lambda parameters: torch.optim.SGD(parameters[:4], lr=0.5),
        ),
        unheeded,
    )
    return trajectory


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
