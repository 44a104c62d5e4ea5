"""check_scaler warns of a float16 loss, which overflows with GradScaler's initial scale."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import LowLoss, TraceStep, Training, check_scaler
from tests.observing import unheeded


def _low(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a low-precision loss: a CPU's autocast has no rule for a square or a mean."""
    return model(batch["inputs"]).square().mean()  # type: ignore[no-any-return]


def run(precision: Precision) -> tuple[TraceStep, ...]:
    case = replace(mlp(width=16, batch=4), loss=_low)
    training = Training(case, find_device("cpu"), precision, overflow_gradients_at=(2,))
    return check_scaler(training, unheeded, nonfinite_buffers=(), note=unheeded)


def test_loss_in_float16_warns() -> None:
    with pytest.warns(LowLoss, match=r"mlp: the loss that is scaled is float16.*output\.float\(\)"):
        traced = run(FP16)
    assert max(step.scale for step in traced) < 65536


def test_gradient_of_a_float16_loss_overflows_at_the_initial_scale() -> None:
    """The gradient of such a loss is the scale in float16, which does not represent 65536."""
    scaler, weight = torch.amp.GradScaler("cpu", init_scale=65536.0), torch.ones((), requires_grad=True)
    scaled: Any = scaler.scale(weight.half())
    scaled.backward()
    assert weight.grad is not None
    assert weight.grad.isinf()


def test_loss_in_bf16_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(BF16)
