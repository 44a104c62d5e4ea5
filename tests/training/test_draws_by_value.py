"""A training whose values decide what it draws has another sample in float32: its band comes from other draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases import Case, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16
from pytest_amp.scaler import standard_step
from pytest_amp.training import Setup, TrainingIteration, TrainingStep, Trajectory, check_training
from tests.observing import Noted, unheeded
from tests.training.test_check_training import sgd

ROWS, SAMPLED = 64, 16
STEPS = 40


def sampling() -> Case:
    """Return a case that computes its loss on a sample of rows, as a detector does on a sample of proposals.

    A detector's rounded boxes may overlap in one proposal more. Here there always is one more in a low dtype.
    """
    case = mlp(width=32, batch=ROWS)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch["inputs"])
        rows = torch.randperm(ROWS + (logits.dtype is not torch.float32))[:SAMPLED] % ROWS
        return functional.cross_entropy(logits.float()[rows], batch["targets"][rows])

    return replace(case, loss=loss)


def check(*, seed: int, train: TrainingStep = standard_step) -> tuple[Trajectory, list[str]]:
    noted = Noted()
    setup = Setup(sampling(), find_device("cpu"), BF16, steps=STEPS, seed=seed, train=train, make_optimizer=sgd)
    return check_training(setup, unheeded, note=noted.note)[0], noted.notes


@pytest.mark.parametrize("seed", range(2))
def test_band_of_another_sample_contains_a_healthy_training(seed: int) -> None:
    _, notes = check(seed=seed)
    assert len(notes) == 1
    assert notes[0].startswith("mlp: what aten::randperm draws depends on values, and float32 draws other numbers")


def test_band_of_another_sample_does_not_contain_a_faulty_training() -> None:
    def diverging(iteration: TrainingIteration) -> None:
        standard_step(iteration)
        if iteration.low:
            with torch.no_grad():
                for parameter in iteration.model.parameters():
                    parameter.mul_(0.9)

    with pytest.raises(AmpFailure, match="the loss leaves the band of float32"):
        check(seed=0, train=diverging)
