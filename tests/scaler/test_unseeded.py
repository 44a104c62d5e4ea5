"""check_scaler distinguishes a step that depends on the scale from one that draws values which torch does not seed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import FP16
from pytest_amp.scaler import Training, check_scaler
from tests.observing import unheeded


def test_unseeded_random_numbers_are_reported() -> None:
    numbers, case = itertools.cycle([1, 4, 16]), mlp(width=16, batch=4)

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = model(batch["inputs"])
        return out.float().square().mean() * next(numbers)

    training = Training(replace(case, loss=loss), find_device("cpu"), FP16, overflow_gradients_at=(2,))
    with pytest.raises(AmpFailure, match="random numbers that torch does not seed"):
        check_scaler(training, unheeded, note=unheeded, nonfinite_buffers=())
