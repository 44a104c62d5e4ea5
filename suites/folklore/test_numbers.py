"""Common claims about formats, scaling and training, compared with measured values."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import TF32

BF16 = pytest.mark.amp(dtypes=["bf16"])
FP16 = pytest.mark.amp(dtypes=["fp16"])


def _model(amp: SuiteAmp) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(amp.device.torch_device)


def _input(amp: SuiteAmp) -> torch.Tensor:
    return torch.randn(8, 16).to(amp.device.torch_device)


def _loss(amp: SuiteAmp, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with amp.autocast():
        loss: torch.Tensor = model(batch).float().square().mean()
    return loss


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_autocast_changes_no_parameter(amp: SuiteAmp) -> None:
    model = _model(amp)
    before = copy.deepcopy(model.state_dict())
    _loss(amp, model, _input(amp)).backward()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {gradient.dtype for gradient in _gradients(model)} == {torch.float32}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_backward_needs_no_region(amp: SuiteAmp) -> None:
    """Each operator runs backward in the dtype of its forward, within a region and outside, bit for bit."""
    inside, batch = _model(amp), _input(amp)
    outside = copy.deepcopy(inside)
    _loss(amp, outside, batch).backward()
    loss = _loss(amp, inside, batch)
    with amp.autocast():
        loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(_gradients(inside), _gradients(outside), strict=True))


@BF16
def test_a_scaled_loss_keeps_no_more_bits_in_bf16(amp: SuiteAmp) -> None:
    """A power of two changes exponents and no mantissa: the unscaled gradients are bitwise the same."""
    plain, batch = _model(amp), _input(amp)
    scaled = copy.deepcopy(plain)
    _loss(amp, plain, batch).backward()
    (_loss(amp, scaled, batch) * 2.0**16).backward()
    assert all(torch.equal(a, b / 2.0**16) for a, b in zip(_gradients(plain), _gradients(scaled), strict=True))


@BF16
def test_a_scaler_is_not_needed_in_bf16_and_is_not_without_effect(amp: SuiteAmp) -> None:
    """A scaler in bf16 scales and skips as in fp16: a step whose gradient is inf is not taken."""
    model = _model(amp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(amp.device.type, init_scale=2.0**10)
    assert scaler.scale(torch.ones((), device=amp.device.torch_device)).item() == 2.0**10
    before = copy.deepcopy(model.state_dict())
    scaler.scale(_loss(amp, model, _input(amp)) * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert scaler.get_scale() == 2.0**9


@FP16
def test_the_range_of_fp16(amp: SuiteAmp) -> None:
    """fp16 has full precision from 6.1e-5 to 65504, and fewer bits down to 6.0e-8."""
    device = amp.device.torch_device
    for value, representable in (
        (65504.0, 65504.0),
        (65520.0, math.inf),
        (2.0**-14, 2.0**-14),
        (2.0**-24, 2.0**-24),
        (2.0**-26, 0),
    ):
        assert torch.tensor(value, device=device).to(torch.float16).item() == representable


@BF16
def test_pi_in_bf16(amp: SuiteAmp) -> None:
    """The nearest value to pi is 3.140625, which is pi to three digits: its neighbours are 0.0156 away."""
    steps = torch.arange(3.0, 3.5, 2**-6, device=amp.device.torch_device)
    assert torch.equal(steps.to(torch.bfloat16).float(), steps)  # all bf16 values there
    nearest = torch.tensor(math.pi, device=amp.device.torch_device).to(torch.bfloat16).item()
    assert nearest == 3.140625 in steps.tolist()
    assert 9e-4 < abs(nearest - math.pi) < 1e-3


def test_tf32_is_stored_in_32_bits(amp: SuiteAmp) -> None:
    """1 + 8 + 10 bits take part in a product; the tensor is float32, and TF32 has no dtype."""
    assert TF32.dtype_name == "float32"
    assert not hasattr(torch, "tfloat32")
    assert torch.ones((), dtype=torch.float32, device=amp.device.torch_device).element_size() == 4
