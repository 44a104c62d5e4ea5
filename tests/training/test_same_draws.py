"""Every run of a training, and every iteration of a scaler's check, draws the same values of Python and of numpy."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from pytest_amp.cases import Case, loss_of, mlp
from pytest_amp.devices import find_device
from pytest_amp.precision import BF16, FP16
from pytest_amp.scaler import Training, check_scaler
from pytest_amp.training import Setup, check_training
from tests.observing import unheeded
from tests.training.test_check_training import sgd

STEPS = 12


def drawing(drawn: list[tuple[float, float]], *, in_batch: bool = False) -> Case:
    """Return a case whose loss, or batch, draws from Python's generator and numpy's, and notes in ``drawn`` what."""
    case = mlp(width=32, batch=16)

    def draw() -> float:
        drawn.append((random.random(), float(np.random.rand())))  # noqa: NPY002, S311  # as models and data sets do
        return 1 + sum(drawn[-1]) / 100

    def batch() -> Any:
        batch = case.batch()
        return {**batch, "inputs": batch["inputs"] * draw()} if in_batch else batch

    def loss(model: nn.Module, batch: Any) -> Any:
        return loss_of(case.loss(model, batch)) * (1 if in_batch else draw())

    return replace(case, batch=batch, loss=loss)


@pytest.mark.parametrize("in_batch", [False, True], ids=["loss", "batch"])
def test_runs_of_a_training_have_the_same_draws(in_batch: bool) -> None:  # noqa: FBT001  # a parameter
    drawn: list[tuple[float, float]] = []
    setup = Setup(
        drawing(drawn, in_batch=in_batch), find_device("cpu"), BF16, steps=STEPS, make_optimizer=sgd, fresh=in_batch
    )
    check_training(setup, unheeded)
    assert len(drawn) >= 2 * STEPS
    assert len(set(drawn)) <= STEPS + 1  # the first batch of a case is drawn with its own seed


def test_iterations_of_the_scaler_have_the_same_draws() -> None:
    drawn: list[tuple[float, float]] = []
    training = Training(drawing(drawn), find_device("cpu"), FP16, overflow_gradients_at=(2,))
    check_scaler(training, unheeded, note=unheeded, nonfinite_buffers=())
    assert len(set(drawn)) < len(drawn)
