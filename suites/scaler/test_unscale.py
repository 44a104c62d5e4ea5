"""``unscale_`` divides the gradients of its optimizer, and only those, by the scale: exactly, and once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import INF, ScalerFactory, expected_gradient, training


@pytest.mark.parametrize("exponent", [0, 3, 10, 13], ids=lambda exponent: f"2^{exponent}")
def test_unscaling_is_exact(amp: SuiteAmp, amp_scaler: ScalerFactory, exponent: int) -> None:
    """Scaling by a power of two, a backward pass in the autocast dtype, and unscaling change no bit of a gradient."""
    run = training(amp, amp_scaler(init_scale=2.0**exponent))
    run.backward()
    run.scaler.unscale_(run.optimizer)
    if not torch.equal(run.gradient, expected_gradient(run.parameter)):
        raise AmpFailure(
            f"a gradient that was scaled by 2**{exponent} and unscaled is not the one without scaling",
            label_before="exact",
            before=str(expected_gradient(run.parameter).flatten().tolist()),
            now=str(run.gradient.flatten().tolist()),
            likely="the gradient is divided twice or not at all, or the inverse of the scale is inexact",
        )


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a region"])
@pytest.mark.parametrize("scale", [3.0, 1000.0, 65535.0, 0.1])
def test_unscaling_multiplies_by_the_rounded_inverse(
    amp: SuiteAmp, amp_scaler: ScalerFactory, scale: float, *, inside: bool
) -> None:
    """Other scales: gradients are multiplied by 1 / scale, which is computed in float64 and rounded to float32 once.

    The same is true inside an autocast region, since a user's loop may have one around the whole iteration.
    """
    if amp.device.type == "mps":
        pytest.skip("MPS has no float64: the inverse is computed in float32 there")
    run = training(amp, amp_scaler(init_scale=scale))
    run.scaler.scale(torch.zeros((), device=amp.device.torch_device))
    gradient = torch.randn(4, 1).to(amp.device.torch_device)
    run.parameter.grad = gradient.clone()
    inverse = torch.tensor(scale, dtype=torch.float32).double().reciprocal().float().to(gradient.device)
    with amp.autocast(enabled=inside):
        scaled = run.scaler.scale(gradient)
        run.scaler.unscale_(run.optimizer)
    assert torch.equal(scaled, gradient * torch.tensor(scale, dtype=torch.float32, device=gradient.device))
    assert torch.equal(run.gradient, gradient * inverse)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_with_a_graph_are_unscaled_and_checked(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Gradients of ``backward(create_graph=True)`` are divided in place, and an inf in one skips the step."""
    for bad in (None, INF):
        run = training(amp, amp_scaler(init_scale=8.0))
        with amp.autocast():
            loss = torch.mm(expected_gradient(run.parameter).T, run.parameter)
        torch.autograd.backward(run.scaler.scale(loss.float().square().sum()), create_graph=True)
        assert run.gradient.requires_grad
        unscaled = run.gradient.detach() / 8
        if bad is not None:
            run.gradient.data[1] = bad
        run.scaler.unscale_(run.optimizer)
        assert bad is not None or torch.equal(run.gradient.detach(), unscaled)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        assert bool((run.parameter == 1).all()) is (bad is not None)
        run.parameter.grad = None  # break the reference cycle of the gradient and its graph


def test_step_does_not_unscale_again(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The step is the same with and without ``unscale_`` before it."""
    updated = []
    for explicit in (False, True):
        run = training(amp, amp_scaler(init_scale=8.0))
        run.backward()
        if explicit:
            run.scaler.unscale_(run.optimizer)
        run.scaler.step(run.optimizer)
        assert torch.equal(run.gradient, expected_gradient(run.parameter)), "step left gradients that are not unscaled"
        updated.append(run.parameter.detach())
    assert torch.equal(*updated)
    assert torch.equal(updated[0], 1 - expected_gradient(updated[0]) / 2)


def test_only_this_optimizers_gradients_are_unscaled(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    optimized, unrelated = (nn.Parameter(torch.ones(3, device=amp.device.torch_device)) for _ in range(2))
    scaler, optimizer = amp_scaler(init_scale=8.0), torch.optim.SGD([optimized], lr=0.5)
    scaler.scale((optimized + unrelated).sum()).backward()
    scaler.unscale_(optimizer)
    assert optimized.grad is not None
    assert unrelated.grad is not None
    assert (optimized.grad.tolist(), unrelated.grad.tolist()) == ([1.0] * 3, [8.0] * 3)


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_clipping_after_unscaling_is_clipping_in_float32(amp: SuiteAmp, amp_scaler: ScalerFactory, clip: str) -> None:
    """``unscale_``, clip, ``step`` is bitwise equal to a clipped step without a scaler (Lightning #9330, #9694)."""
    clips: dict[str, Callable[[nn.Parameter], Any]] = {
        "norm": lambda p: nn.utils.clip_grad_norm_([p], 1.0),
        "value": lambda p: nn.utils.clip_grad_value_([p], 1.25),
    }
    updated, norms = [], []
    for enabled in (False, True):
        run = training(amp, amp_scaler(init_scale=2.0**10, enabled=enabled))
        run.backward()
        run.scaler.unscale_(run.optimizer)
        norms.append(clips[clip](run.parameter))
        run.scaler.step(run.optimizer)
        run.scaler.update()
        updated.append(run.parameter.detach())
    assert torch.equal(*updated), "a clipped step with a scaler differs from one without"
    if clip == "norm":
        assert [float(norm) for norm in norms] == [float(norms[0])] * 2
        assert float(norms[0]) == pytest.approx(math.sqrt(1 + 4 + 9 + 0.25))


def test_clipping_before_unscaling_is_not(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Clipping scaled gradients divides the update by the scale: a known mistake, which ``unscale_`` first prevents."""
    run = training(amp, amp_scaler(init_scale=2.0**10))
    run.backward()
    nn.utils.clip_grad_norm_([run.parameter], 1.0)
    run.scaler.step(run.optimizer)
    change = float((run.parameter.detach() - 1).norm())
    assert change == pytest.approx(0.5 * 2.0**-10, rel=1e-3)


def test_an_overflow_is_remembered_from_unscale_to_step(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Removing the inf between them does not undo it: the user may have computed a norm from it."""
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward(INF)
    run.scaler.unscale_(run.optimizer)
    run.gradient.nan_to_num_(posinf=0.0)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    assert bool((run.parameter == 1).all())
    assert run.state == (4.0, 0)


def test_the_other_gradients_of_an_overflow_are_unscaled(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward(INF)
    run.scaler.unscale_(run.optimizer)
    assert run.gradient.flatten().tolist() == [1.0, INF, 3.0, 0.5]


def test_accumulated_gradients_are_unscaled_once(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Micro-batches at one scale with one ``unscale_`` give the exact sum of their unscaled gradients."""
    run = training(amp, amp_scaler(init_scale=2.0**10))
    run.optimizer.zero_grad()
    rows = torch.tensor([[1.0, -2.0, 3.0, 0.5], [2.0, 1.0, -1.0, 4.0], [0.25, 8.0, 1.0, -3.0]]).to(run.parameter.device)
    for row in rows:
        with amp.autocast():
            loss = torch.mm(row[None], run.parameter)
        run.scaler.scale(loss.float().sum()).backward()
    run.scaler.unscale_(run.optimizer)
    assert torch.equal(run.gradient, rows.sum(0)[:, None])
    run.scaler.step(run.optimizer)
    assert torch.equal(run.parameter, 1 - rows.sum(0)[:, None] / 2)


def test_an_overflow_in_one_micro_batch_skips_the_accumulated_step(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    run = training(amp, amp_scaler(init_scale=8.0))
    run.backward(INF)
    with amp.autocast():
        loss = torch.mm(torch.ones(1, 4, device=run.parameter.device), run.parameter)
    run.scaler.scale(loss.float().sum()).backward()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    assert bool((run.parameter == 1).all())
    assert run.state == (4.0, 0)


def test_gradients_are_unscaled_in_place(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Gradients that are views of one buffer, as in DDP and FSDP, stay these views, and the buffer is unscaled."""
    buffer = torch.full((6,), 8.0, device=amp.device.torch_device)
    parameters = [nn.Parameter(torch.ones(3, device=buffer.device)) for _ in range(2)]
    views = [buffer[:3], buffer[3:]]
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view
    optimizer, scaler = torch.optim.SGD(parameters, lr=0.5), amp_scaler(init_scale=8.0)
    scaler.scale(torch.zeros((), device=buffer.device))
    scaler.unscale_(optimizer)
    assert all(parameter.grad is view for parameter, view in zip(parameters, views, strict=True))
    assert buffer.tolist() == [1.0] * 6


@pytest.mark.parametrize("scale", [1.0, 2.0**10])
@pytest.mark.parametrize("implementation", ["loop", "fused"])
def test_large_gradients_are_no_overflow(
    amp: SuiteAmp, amp_scaler: ScalerFactory, implementation: str, scale: float
) -> None:
    """Finite gradients beyond the range of fp16 do not skip the step, and each element is unscaled exactly."""
    largest = torch.finfo(torch.float32).max
    # The last two are small: they must not become zero.
    values = [65536.0, -(2.0**100), torch.finfo(torch.bfloat16).max, largest, -largest, 2.0**-100, -(2.0**-115)]
    parameter = nn.Parameter(torch.zeros(len(values), device=amp.device.torch_device))
    optimizer = torch.optim.SGD([parameter], lr=1.0, fused=implementation == "fused", foreach=False)
    scaler = amp_scaler(init_scale=scale)
    scaler.scale(torch.zeros((), device=parameter.device))
    parameter.grad = torch.tensor(values, device=parameter.device)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == scale, "the scale backed off: a large gradient was treated as an overflow"
    assert parameter.tolist() == [-value / scale for value in values]
