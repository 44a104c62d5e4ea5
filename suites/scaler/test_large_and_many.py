"""Gradients of real models: hundreds of them, millions of elements, values of every size, float64 among them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp

from .training import INF, NAN, ScalerFactory

#: More tensors than a fused kernel takes in one launch, and one that needs many blocks.
SIZES = [*range(1, 121), 2**20 + 3]
SCALE = 2.0**10


def _model(amp: SuiteAmp, dtype: torch.dtype) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    parameters = [nn.Parameter(torch.ones(size, dtype=dtype, device=amp.device.torch_device)) for size in SIZES]
    return parameters, torch.optim.SGD(parameters, lr=0.5)


def _gradients(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return normal values times powers of two; unscaled, they approach float32's smallest normal value."""
    generator = torch.Generator().manual_seed(0)
    gradients = []
    for size in SIZES:
        exponent = torch.randint(-110, 60, (size,), generator=generator).to(dtype)
        gradients.append(torch.randn(size, generator=generator, dtype=dtype) * 2**exponent)
    return gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_every_gradient_is_unscaled_exactly(amp: SuiteAmp, amp_scaler: ScalerFactory, dtype: torch.dtype) -> None:
    if dtype is torch.float64 and amp.device.type == "mps":
        pytest.skip("MPS has no float64")
    parameters, optimizer = _model(amp, dtype)
    scaler, expected = amp_scaler(init_scale=SCALE), _gradients(dtype)
    scaler.scale(torch.zeros((), device=amp.device.torch_device))
    for parameter, gradient in zip(parameters, expected, strict=True):
        parameter.grad = gradient.to(parameter.device) * SCALE
    scaler.unscale_(optimizer)
    wrong = [
        gradient.numel()
        for parameter, gradient in zip(parameters, expected, strict=True)
        if parameter.grad is None or not torch.equal(parameter.grad.cpu(), gradient)
    ]
    assert wrong == [], f"gradients of these sizes are not what they are without scaling: {wrong}"


@pytest.mark.parametrize("bad", [INF, NAN], ids=["inf", "nan"])
@pytest.mark.parametrize("place", [0, 63, 119, 120], ids=["first", "middle", "last small", "large"])
def test_one_bad_element_among_all_skips_all(amp: SuiteAmp, amp_scaler: ScalerFactory, place: int, bad: float) -> None:
    parameters, optimizer = _model(amp, torch.float32)
    scaler = amp_scaler(init_scale=SCALE)
    scaler.scale(torch.zeros((), device=amp.device.torch_device))
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, SCALE)
    gradient = parameters[place].grad
    assert gradient is not None
    gradient[-1] = bad
    scaler.step(optimizer)
    scaler.update()
    assert all(bool((parameter == 1).all()) for parameter in parameters), "a parameter changed"
    assert scaler.get_scale() == SCALE / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_scaled_loss_keeps_its_dtype(amp: SuiteAmp, amp_scaler: ScalerFactory, dtype: torch.dtype) -> None:
    if dtype is torch.float64 and amp.device.type == "mps":
        pytest.skip("MPS has no float64")
    loss = torch.tensor([1 / 3], dtype=dtype, device=amp.device.torch_device)
    scaled = amp_scaler(init_scale=SCALE).scale(loss)
    assert scaled.dtype is dtype
    assert torch.equal(scaled, loss * SCALE)
