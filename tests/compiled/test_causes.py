"""Known faults of torch in compiled code are the likely cause of a failure on their device, dtype and releases."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.compiled.causes import cause_of_error, known_cause
from pytest_amp.devices import find_device
from pytest_amp.numerics import Conditions
from pytest_amp.precision import BF16, FP16, Precision

CAUSE = "{}, a BatchNorm: in fp16 on CUDA torch.compile calls another kernel than eager"


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), nn.Linear(4, 2))


def cause(name: str, device: str = "fake:cuda", precision: Precision = FP16) -> str | None:
    return known_cause(network(), name, Conditions(find_device(device), precision))


@pytest.fixture(autouse=True)
def torch_with_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.14.1+cu130")


@pytest.mark.parametrize("name", ["1.1.bias", "1.1.weight", "1.0.bias"])
def test_batch_norm_and_the_layer_before_it_are_named(name: str) -> None:
    message = cause(name)
    assert message is not None
    assert message.startswith(CAUSE.format("1.1"))
    assert message.endswith("up to 2.14")


@pytest.mark.parametrize("name", ["0.bias", "2.weight", "output.loss", "input", "buffer.1.1.running_mean"])
def test_other_tensors_have_no_known_cause(name: str) -> None:
    assert cause(name) is None


def test_other_conditions_have_no_known_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cause("1.1.bias", device="cpu") is None
    assert cause("1.1.bias", precision=BF16) is None
    monkeypatch.setattr(torch, "__version__", "2.15.0+cu130")
    assert cause("1.1.bias") is None


@pytest.mark.parametrize(
    ("in_float32", "likely"),
    [
        ("view size is not compatible", "the compiler, not mixed precision: compiled, the step raises the same error"),
        ("another error", "the compiler: the same step runs in eager"),
        (None, "the compiler: the same step runs in eager"),
    ],
)
def test_error_of_the_compiled_step_is_tried_in_float32(in_float32: str | None, likely: str) -> None:
    def run() -> None:
        if in_float32 is not None:
            raise RuntimeError(in_float32)

    assert cause_of_error(RuntimeError("view size is not compatible"), run).startswith(likely)
