"""Clipping with a scaler: after ``unscale_`` it equals clipping in float32, for any number and size of gradients.

Before ``unscale_`` it clips scaled gradients (Lightning #9330, #9694), the mistake in ``test_unscale.py``.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp

from .training import INF, NAN, ScalerFactory

#: Small tensors and large ones; the sum of squares is sensitive to low precision.
SIZES = (1, 7, 64, 1000, 70_001)
_SCALE = 2.0**10


def _unscaled(amp: SuiteAmp, scaler: torch.amp.GradScaler) -> tuple[list[nn.Parameter], list[torch.Tensor]]:
    """Return parameters whose gradients were scaled and unscaled, and those gradients in float64."""
    generator = torch.Generator().manual_seed(amp.config.seed)
    parameters = [nn.Parameter(torch.zeros(size, device=amp.device.torch_device)) for size in SIZES]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    scaler.scale(torch.zeros((), device=amp.device.torch_device))
    unscaled = []
    for parameter in parameters:
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient.to(parameter.device) * _SCALE
        unscaled.append(gradient.double())
    scaler.unscale_(optimizer)
    return parameters, unscaled


def _clipped(parameters: list[nn.Parameter], limit: float, *, by: str, norm_type: float, foreach: bool) -> torch.Tensor:
    """Clip by torch's one function, or by its two halves, between which a norm can be reduced over ranks."""
    if by == "clip_grad_norm_":
        return nn.utils.clip_grad_norm_(parameters, limit, norm_type=norm_type, foreach=foreach)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients, norm_type=norm_type, foreach=foreach)
    nn.utils.clip_grads_with_norm_(parameters, limit, norm, foreach=foreach)
    return norm


@pytest.mark.parametrize("by", ["clip_grad_norm_", "get_total_norm"])
@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf], ids=["1", "2", "inf"])
def test_the_norm_is_a_float32_norm(
    amp: SuiteAmp, amp_scaler: ScalerFactory, norm_type: float, by: str, *, foreach: bool
) -> None:
    """Compute the norm of all gradients, as exact as float32 sums of n terms: sqrt(n) roundings, 1.6e-5 here.

    bf16 and fp16 miss that by far. The clipped gradients are the unscaled ones times one factor.
    """
    allowed = math.sqrt(max(SIZES)) * 2.0**-24
    parameters, gradients = _unscaled(amp, amp_scaler(init_scale=_SCALE))
    norm = float(torch.cat(gradients).norm(norm_type))
    with amp.autocast():  # the norm has a rule of its own there, float32
        actual = _clipped(parameters, norm / 8, by=by, norm_type=norm_type, foreach=foreach)
    assert actual.dtype is torch.float32
    assert float(actual) == pytest.approx(norm, rel=allowed)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.cpu().double(), gradient / 8, rtol=2 * allowed, atol=0.0)


@pytest.mark.parametrize("by", ["clip_grad_norm_", "get_total_norm"])
@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
def test_what_is_within_the_limit_stays_as_it_is(
    amp: SuiteAmp, amp_scaler: ScalerFactory, by: str, *, foreach: bool
) -> None:
    """Clipping never makes a gradient larger: gradients within the limit keep their bits."""
    parameters, gradients = _unscaled(amp, amp_scaler(init_scale=_SCALE))
    norm = float(torch.cat(gradients).norm())
    _clipped(parameters, 2 * norm, by=by, norm_type=2.0, foreach=foreach)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad.cpu(), gradient.float())


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
def test_values_are_clipped_exactly(amp: SuiteAmp, amp_scaler: ScalerFactory, *, foreach: bool) -> None:
    parameters, gradients = _unscaled(amp, amp_scaler(init_scale=_SCALE))
    nn.utils.clip_grad_value_(parameters, 0.75, foreach=foreach)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad.cpu(), gradient.float().clamp(-0.75, 0.75))


@pytest.mark.parametrize("bad", [INF, NAN], ids=["inf", "nan"])
@pytest.mark.parametrize("clip", ["norm", "value"])
@pytest.mark.parametrize("when", ["before unscale_", "after unscale_"])
def test_an_overflow_is_skipped_in_spite_of_clipping(
    amp: SuiteAmp, amp_scaler: ScalerFactory, clip: str, when: str, bad: float
) -> None:
    """Overflow skips after ``unscale_``; clipping by value before it makes an inf finite, which cannot be detected."""
    parameter = nn.Parameter(torch.ones(4, device=amp.device.torch_device))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.5), amp_scaler(init_scale=8.0)
    scaler.scale(parameter.sum()).backward()
    assert parameter.grad is not None
    parameter.grad[1] = bad
    if when == "after unscale_":
        scaler.unscale_(optimizer)
    if clip == "norm":
        nn.utils.clip_grad_norm_([parameter], 1.0)
    else:
        nn.utils.clip_grad_value_([parameter], 1.0)
    scaler.step(optimizer)
    scaler.update()
    hidden = (clip, when) == ("value", "before unscale_") and bad == INF
    assert bool((parameter == 1).all()) != hidden
    assert scaler.get_scale() == (8.0 if hidden else 4.0)


def test_a_non_finite_norm_can_be_an_error(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """``error_if_nonfinite`` raises torch's error, and the scaler's step afterwards still skips."""
    parameter = nn.Parameter(torch.ones(4, device=amp.device.torch_device))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.5), amp_scaler(init_scale=8.0)
    scaler.scale(parameter.sum()).backward()
    assert parameter.grad is not None
    parameter.grad[1] = INF
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="non-finite, so it cannot be clipped"):
        nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    assert bool((parameter == 1).all())
    assert scaler.get_scale() == 4.0
