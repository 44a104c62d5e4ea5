"""int8 by an affine map, per tensor or channel: round trips are within half a step, ties go to even, ends saturate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp

# A power of two, so that ties are ties; and even, for whether the zero point is added before rounding or after
# differs from function to function, and shows in the ties of an odd one.
_SCALE, _ZERO = 0.125, 4
_LOW, _HIGH = -128, 127


def _values(amp: SuiteAmp) -> torch.Tensor:
    """Return every step, every tie between two, and values beyond both ends."""
    return (torch.arange(-300, 301, dtype=torch.float32) / 2 * _SCALE).to(amp.device.torch_device)


def _integers(values: torch.Tensor) -> torch.Tensor:
    """Return the map in float64: the rounding of ``torch.round``, half to even, then the zero point, then the ends."""
    exact = torch.round(values.double().cpu() / _SCALE) + _ZERO
    return exact.clamp(_LOW, _HIGH)


def _back(integers: torch.Tensor) -> torch.Tensor:
    return (integers - _ZERO) * _SCALE


def test_the_affine_map_by_hand(amp: SuiteAmp) -> None:
    """``round``, ``clamp``, ``to(int8)`` and back, on values of the autocast dtype, are exact: 8 bits fit into both."""
    values = _values(amp).to(amp.dtype)
    integers = (torch.round(values / _SCALE) + _ZERO).clamp(_LOW, _HIGH).to(torch.int8)
    assert torch.equal(integers.cpu().double(), _integers(values))
    back: Any = (integers.to(amp.dtype) - _ZERO) * _SCALE
    assert back.dtype is amp.dtype
    inside = (integers > _LOW) & (integers < _HIGH)
    assert float((back - values)[inside].abs().max()) == _SCALE / 2


#: Quantised tensors are deprecated: pytorch/pytorch#184982.
_QUIET = pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning")
_THERE = pytest.mark.skipif(not hasattr(torch, "quantize_per_tensor"), reason="this torch has no quantised tensors")


@_QUIET
@_THERE
def test_quantised_tensors(amp: SuiteAmp) -> None:
    """``quantize_per_tensor`` and ``dequantize`` give the integers and values of the explicit map."""
    values = _values(amp)
    quantised = torch.quantize_per_tensor(values, _SCALE, _ZERO, torch.qint8)
    expected = _integers(values)
    assert torch.equal(quantised.int_repr().cpu().double(), expected)
    assert torch.equal(quantised.dequantize().cpu().double(), _back(expected))


#: One for each channel.
_SCALES, _ZEROS = (0.125, 0.5, 2.0), (4, 0, -6)


def _channels(amp: SuiteAmp, axis: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values of three channels along ``axis``, their quantised integers, and the dequantised values."""
    steps = _values(amp).double().cpu() / _SCALE
    rows = [torch.round(steps) + zero for zero in _ZEROS]
    integers = torch.stack([row.clamp(_LOW, _HIGH) for row in rows])
    scales, zeros = torch.tensor(_SCALES, dtype=torch.float64), torch.tensor(_ZEROS, dtype=torch.float64)
    values = (steps * scales[:, None]).float().to(amp.device.torch_device)
    back = (integers - zeros[:, None]) * scales[:, None]
    return (values, integers, back) if axis == 0 else (values.T, integers.T, back.T)


@_QUIET
@_THERE
@pytest.mark.parametrize("axis", [0, 1])
def test_quantised_channels(amp: SuiteAmp, axis: int) -> None:
    """``quantize_per_channel`` uses each channel's scale and zero point."""
    values, integers, back = _channels(amp, axis)
    where = values.device
    scales, zeros = torch.tensor(_SCALES, device=where), torch.tensor(_ZEROS, device=where)
    quantised = torch.quantize_per_channel(values, scales, zeros, axis, torch.qint8)
    assert torch.equal(quantised.int_repr().cpu().double(), integers)
    assert torch.equal(quantised.dequantize().cpu().double(), back)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "autocast"])
@pytest.mark.parametrize("axis", [0, 1])
def test_fake_quantisation_of_channels(amp: SuiteAmp, axis: int, *, inside: bool) -> None:
    values, _, back = _channels(amp, axis)
    where = values.device
    scales = torch.tensor(_SCALES, device=where)
    zeros = torch.tensor(_ZEROS, device=where, dtype=torch.int32)
    with amp.autocast(enabled=inside):
        actual = torch.fake_quantize_per_channel_affine(values, scales, zeros, axis, _LOW, _HIGH)
    assert actual.dtype is torch.float32
    assert torch.equal(actual.cpu().double(), back)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "autocast"])
def test_fake_quantisation(amp: SuiteAmp, *, inside: bool) -> None:
    """Fake quantisation has float32 inputs and outputs, within a region, too; gradients pass inside the range only."""
    values = _values(amp).requires_grad_()
    with amp.autocast(enabled=inside):
        actual = torch.fake_quantize_per_tensor_affine(values, _SCALE, _ZERO, _LOW, _HIGH)
    assert actual.dtype is torch.float32
    assert torch.equal(actual.detach().cpu().double(), _back(_integers(values.detach())))
    (gradient,) = torch.autograd.grad(actual.sum(), values)
    unclamped = torch.round(values.detach().double().cpu() / _SCALE) + _ZERO
    passes = (unclamped >= _LOW) & (unclamped <= _HIGH)
    assert torch.equal(gradient.cpu() == 1, passes)
    assert torch.equal(gradient.cpu() == 0, ~passes)


@_QUIET
@_THERE
def test_steps_that_are_no_powers_of_two(amp: SuiteAmp) -> None:
    """Random values, with a scale from their range: the error is half a step and one float32 rounding."""
    torch.manual_seed(amp.config.seed)
    values = torch.randn(4096).to(amp.device.torch_device)
    scale = float(values.abs().max()) / 127
    back = torch.quantize_per_tensor(values, scale, 0, torch.qint8).dequantize()
    worst = float((back.double() - values.double()).abs().max())
    amp.observe("int8 round trip", worst / scale, kind="error", unit="steps", allowed=0.5 + 2.0**-16)
    assert 0.49 < worst / scale <= 0.5 + 2.0**-16


def test_low_inputs_lose_nothing_more(amp: SuiteAmp) -> None:
    """Quantising a tensor of the autocast dtype quantises its values, without a second rounding."""
    torch.manual_seed(amp.config.seed)
    values = torch.randn(4096).to(amp.dtype).to(amp.device.torch_device)
    scale = 1.0 / 32
    actual = torch.fake_quantize_per_tensor_affine(values.float(), scale, 0, _LOW, _HIGH).double().cpu()
    expected = torch.round(values.double().cpu() / scale).clamp(_LOW, _HIGH) * scale
    assert torch.equal(actual, expected)
