"""Trainings in which computed values determine the random numbers, so that float32 draws others.

The band of such a training comes from companions that draw their own random numbers.
"""

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
    """Return a case that computes its loss on a random sample of rows, as a detector does on a sample of proposals.

    In a detector, rounding of the boxes may change the number of proposals from which it samples. Here a low dtype
    always has one row more to sample from.
    """
    case = mlp(width=32, batch=ROWS)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch["inputs"])
        rows = torch.randperm(ROWS + (logits.dtype is not torch.float32))[:SAMPLED] % ROWS
        return functional.cross_entropy(logits.float()[rows], batch["targets"][rows])

    return replace(case, loss=loss)


def check(*, seed: int, train: TrainingStep = standard_step) -> tuple[Trajectory, list[str]]:
    """Check the training, and return its trajectory and the notes of the check."""
    noted = Noted()
    setup = Setup(sampling(), find_device("cpu"), BF16, steps=STEPS, seed=seed, train=train, make_optimizer=sgd)
    return check_training(setup, unheeded, note=noted.note)[0], noted.notes


@pytest.mark.parametrize("seed", range(2))
def test_band_of_own_draws_contains_a_healthy_training(seed: int) -> None:
    _, notes = check(seed=seed)
    assert len(notes) == 1
    assert notes[0].startswith("mlp: what aten::randperm draws depends on values, and float32 draws other numbers")


def test_band_of_own_draws_excludes_a_faulty_training() -> None:
    def diverging(iteration: TrainingIteration) -> None:
        standard_step(iteration)
        if iteration.low:
            with torch.no_grad():
                for parameter in iteration.model.parameters():
                    parameter.mul_(0.9)

    with pytest.raises(AmpFailure, match="the loss leaves the band of float32"):
        check(seed=0, train=diverging)
