"""Common training loops converge as in float32: micro-batches, clipping, schedulers, weight averages, nullcontext.

The check is the public one, ``amp.check_training``. It reports a backward pass inside the region.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import loss_of
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.training import TrainingIteration, images

_STEPS = 12
_DECAY = 0.75


def _forward(iteration: TrainingIteration) -> torch.Tensor:
    with iteration.autocast():
        return iteration.loss()


def _backward(iteration: TrainingIteration, loss: torch.Tensor) -> None:
    iteration.scaler.scale(loss).backward()


def _finish(iteration: TrainingIteration) -> None:
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def accumulated(iteration: TrainingIteration) -> None:
    """Accumulate three micro-batches; the loss is divided outside the region, where it is float32."""
    iteration.optimizer.zero_grad()
    whole = iteration.batch
    for part in range(3):
        iteration.batch = {name: value[part::3] for name, value in whole.items()}
        loss = _forward(iteration)
        assert loss.dtype is torch.float32
        _backward(iteration, loss / 3)
    iteration.batch = whole
    _finish(iteration)


def clipped(iteration: TrainingIteration) -> None:
    """Clip to a norm that nearly every step exceeds."""
    iteration.optimizer.zero_grad()
    _backward(iteration, _forward(iteration))
    iteration.scaler.unscale_(iteration.optimizer)
    nn.utils.clip_grad_norm_(iteration.model.parameters(), 0.25)
    _finish(iteration)


def scheduled(iteration: TrainingIteration) -> None:
    """Use a warm-up and a cosine schedule, stepped after each optimizer step that was not skipped."""
    if "scheduler" not in iteration.kept:
        warm = lr_scheduler.LinearLR(iteration.optimizer, 0.25, total_iters=4)
        cosine = lr_scheduler.CosineAnnealingLR(iteration.optimizer, T_max=_STEPS - 4)
        iteration.kept["scheduler"] = lr_scheduler.SequentialLR(iteration.optimizer, [warm, cosine], [4])
    iteration.optimizer.zero_grad()
    _backward(iteration, _forward(iteration))
    scale = iteration.scaler.get_scale()
    _finish(iteration)
    if iteration.scaler.get_scale() >= scale:
        iteration.kept["scheduler"].step()


def averaged(iteration: TrainingIteration) -> None:
    """Update an exponential moving average of the weights after each optimizer step that was not skipped."""
    iteration.optimizer.zero_grad()
    _backward(iteration, _forward(iteration))
    scale = iteration.scaler.get_scale()
    _finish(iteration)
    if iteration.scaler.get_scale() >= scale:
        average = iteration.kept.setdefault(
            "average", AveragedModel(iteration.model, multi_avg_fn=get_ema_multi_avg_fn(_DECAY))
        )
        average.update_parameters(iteration.model)
        weights = iteration.kept.setdefault("weights", [])
        weights.append([p.detach().double() for p in iteration.model.parameters()])


def conditional(iteration: TrainingIteration) -> None:
    """Use ``autocast() if amp else nullcontext()`` around the forward pass."""
    iteration.optimizer.zero_grad()
    region: Any = iteration.autocast() if iteration.low else contextlib.nullcontext()
    with region:
        loss = iteration.loss()
    _backward(iteration, loss)
    _finish(iteration)


def within(iteration: TrainingIteration) -> None:
    """Run the whole iteration within the region, against torch's advice."""
    with iteration.autocast():
        iteration.optimizer.zero_grad()
        _backward(iteration, iteration.loss())
        _finish(iteration)


LOOPS: tuple[Callable[[Any], None], ...] = (accumulated, clipped, scheduled, conditional)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_goes_where_float32_goes(amp: SuiteAmp, loop: Callable[[Any], None]) -> None:
    task = images(batch=24)
    amp.check_training(
        replace(task.case, name=loop.__name__), steps=_STEPS, train=loop, optimizer=task.optimizer, fresh=True
    )


def test_a_backward_pass_within_the_region_is_named(amp: SuiteAmp) -> None:
    """Backward inside a region may be harmless, but torch does not guarantee the dtypes of its operators."""
    task = images(batch=24)
    with pytest.raises(AmpFailure, match="backward runs inside the region; it belongs outside"):
        amp.check_training(task.case, steps=_STEPS, train=within, optimizer=task.optimizer, fresh=True)


def test_averaged_weights_follow_float32(amp: SuiteAmp) -> None:
    """Compare with the float64 average of the weights of each step; allow two float32 roundings a step."""
    task = images()
    actual = amp.check_training(
        replace(task.case, name="averaged"), steps=_STEPS, train=averaged, optimizer=task.optimizer, fresh=True
    )
    weights, average = actual.kept["weights"], actual.kept["average"]
    expected = weights[0]
    for later in weights[1:]:
        expected = [old * _DECAY + new * (1 - _DECAY) for old, new in zip(expected, later, strict=True)]
    for (name, parameter), value in zip(average.module.named_parameters(), expected, strict=True):
        assert parameter.dtype is torch.float32, f"the average of {name} is {parameter.dtype}"
        allowed = 2 * _STEPS * 2.0**-24 * float(value.abs().max())
        distance = float((parameter.detach().double() - value).abs().max())
        assert distance <= allowed, (
            f"the average of {name} has an error of {distance:.3g}, more than the allowed {allowed:.3g}"
        )


def test_schedule_and_average_stand_still_where_a_step_is_skipped(amp: SuiteAmp, amp_scaler: Any) -> None:
    """The loop detects a skipped step by its lower scale: then learning rate, average and weights do not change."""
    case = images().case
    realised = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    optimizer = torch.optim.SGD(realised.model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    average = AveragedModel(realised.model, multi_avg_fn=get_ema_multi_avg_fn(_DECAY))
    scaler = amp_scaler(init_scale=8.0, growth_interval=2)
    states = []
    for overflow in (False, True, False, False, True, True, False):
        before = [p.detach().clone() for p in realised.model.parameters()]
        optimizer.zero_grad()
        with amp.autocast():
            loss = loss_of(case.loss(realised.model, realised.batch))
        scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            scheduler.step()
            average.update_parameters(realised.model)
        moved = any(not torch.equal(a, b) for a, b in zip(before, realised.model.parameters(), strict=True))
        states.append((moved, scheduler.get_last_lr()[0] / 0.1, int(average.n_averaged)))
    expected = [(True, 1), (False, 1), (True, 2), (True, 3), (False, 3), (False, 3), (True, 4)]
    assert states == [(moved, 0.5**steps, steps) for moved, steps in expected]


def _of_a_quotient(amp: SuiteAmp) -> float:
    """Return the largest relative error of a float32 tensor that is divided by a number.

    A CPU rounds the quotient. CUDA's kernel multiplies by the rounded reciprocal (div_true_kernel_cuda in
    aten/src/ATen/native/cuda/BinaryDivTrueKernel.cu): two roundings of 2^-24, and 1.72 of them were seen.
    """
    once = 2.0**-24
    return once if amp.device.kind is DeviceKind.CPU else (1 + once) ** 2 - 1


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_the_loss_of_a_micro_batch_is_divided_in_float32(amp: SuiteAmp, parts: int) -> None:
    """Divide outside the region, in float32: gradients equal those of a backward pass that starts from 1/n.

    They are bitwise equal, since the gradient of the division is 1/n in float32.
    """
    realised = images().case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    case, scale = images().case, 2.0**10
    start = torch.tensor(scale, device=amp.device.torch_device) / parts
    gradients = []
    for divide in (True, False):
        realised.model.zero_grad()
        with amp.autocast():
            loss = loss_of(case.loss(realised.model, realised.batch))
        if divide:
            whole = loss.double() / parts
            loss = loss / parts
            assert abs(loss.double() - whole) <= _of_a_quotient(amp) * whole, "the divided loss is no float32 quotient"
            torch.autograd.backward(loss * scale)
        else:
            torch.autograd.backward(loss, start)
        gradients.append([p.grad.clone() for p in realised.model.parameters() if p.grad is not None])
    different = sum(not torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert different == 0, f"{different} gradients change where the loss is divided by {parts}"


def test_micro_batches_add_up_in_float32(amp: SuiteAmp) -> None:
    """A hundred equal micro-batches give a hundred times the gradient; bf16 sums would stop at 256 times the addend."""
    realised = images().case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    case, count = images().case, 100
    realised.model.eval()  # moving statistics would change the gradients
    first: list[torch.Tensor] = []
    for index in range(count):
        with amp.autocast():
            loss = loss_of(case.loss(realised.model, realised.batch))
        torch.autograd.backward(loss * 2.0**10)
        if index == 0:
            first = [p.grad.double() for p in realised.model.parameters() if p.grad is not None]
    for (name, parameter), one in zip(realised.model.named_parameters(), first, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype is torch.float32, f"{name} is accumulated in {parameter.grad.dtype}"
        # A hundred additions, each rounded to float32.
        error = (parameter.grad.double() - count * one).abs().max() / (count * one.abs().max())
        assert error <= count * 2.0**-24, f"{name} has an error of {float(error):.2g} after {count} micro-batches"
