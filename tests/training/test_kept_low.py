"""Low-precision state that a training step retains: an average of weights, a sum of losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import swa_utils
from torch.optim.swa_utils import AveragedModel

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16
from pytest_amp.training import Setup, TrainingIteration, check_training
from tests.observing import unheeded

pytestmark = pytest.mark.usefixtures("one_thread")


def step(iteration: TrainingIteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    torch.autograd.backward(loss)
    iteration.optimizer.step()


def averaging(dtype: torch.dtype) -> Callable[[TrainingIteration], None]:
    def train(iteration: TrainingIteration) -> None:
        step(iteration)
        weights = {name: weight.detach().to(dtype) for name, weight in iteration.model.named_parameters()}
        average = iteration.kept.setdefault("average", {name: weight.clone() for name, weight in weights.items()})
        for name, weight in weights.items():
            average[name].mul_(0.999).add_(weight, alpha=0.001)

    return train


def averaged_module(dtype: torch.dtype) -> Callable[[TrainingIteration], None]:
    def train(iteration: TrainingIteration) -> None:
        step(iteration)
        if "average" not in iteration.kept:
            averages: Any = swa_utils
            model = AveragedModel(iteration.model, multi_avg_fn=averages.get_ema_multi_avg_fn(0.99))
            iteration.kept["average"] = model.to(dtype)

    return train


def averaged_copy(dtype: torch.dtype) -> Callable[[TrainingIteration], None]:
    """Average the weights in a copy of the model, as training loops do by themselves."""

    def train(iteration: TrainingIteration) -> None:
        step(iteration)
        average = iteration.kept.setdefault("average", copy.deepcopy(iteration.model).to(dtype))
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), iteration.model.parameters(), strict=True):
                mean.lerp_(weight.to(dtype), 0.01)

    return train


def copying(iteration: TrainingIteration) -> None:
    """Keep the weights of each step in a low-precision copy, for inference."""
    step(iteration)
    low = iteration.kept.setdefault("inference", copy.deepcopy(iteration.model).bfloat16())
    low.load_state_dict(iteration.model.state_dict())


def teaching(iteration: TrainingIteration) -> None:
    step(iteration)
    iteration.kept.setdefault("teacher", nn.Linear(4, 4).bfloat16())
    iteration.kept["steps"] = torch.tensor(iteration.index)


def check(train: Callable[[TrainingIteration], None]) -> Any:
    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    setup = Setup(mlp(), find_device("cpu"), BF16, steps=4, train=train, make_optimizer=optimizer)
    return check_training(setup, unheeded)


@pytest.mark.parametrize("keep", [averaging, averaged_module, averaged_copy])
def test_average_of_weights_in_low_precision_is_red(keep: Callable[..., Any]) -> None:
    with pytest.raises(AmpFailure, match="what the step keeps is not in float32") as raised:
        check(keep(torch.bfloat16))
    assert "kept['average']" in str(raised.value)
    assert "is bfloat16" in str(raised.value)


@pytest.mark.parametrize(
    "train",
    [averaging(torch.float32), averaged_module(torch.float32), averaged_copy(torch.float32), copying, teaching],
    ids=["average", "averaged module", "averaged copy", "copy for inference", "teacher"],
)
def test_float32_averages_and_a_low_teacher_pass(train: Callable[[TrainingIteration], None]) -> None:
    check(train)
