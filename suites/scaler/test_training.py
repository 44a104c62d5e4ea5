"""Whole trainings: fp16 with a scaler reaches float32's loss, bf16 needs none, schedulers and scalers work together."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import INF, ScalerFactory, training

_STEPS = 40
#: Makes every gradient of the training smaller than half of fp16's smallest value, 2**-24.
_TINY = 2.0**-28


@dataclass(frozen=True)
class Run:
    """Losses of a training, its number of skipped steps, and its final parameters."""

    losses: list[float]
    skipped: int
    parameters: list[torch.Tensor]


def _train(amp: SuiteAmp, seed: int, *, low: bool, scaler: torch.amp.GradScaler, factor: float = 1.0) -> Run:
    """Train a small regression until enough steps are taken; ``factor`` reduces the loss and each gradient."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    batch = torch.randn(64, 16)
    target = (batch[:, :4].sum(1, keepdim=True) / 2).sin()
    device = amp.device.torch_device
    model, batch, target = model.to(device), batch.to(device), target.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 / factor, momentum=0.9)
    losses: list[float] = []
    skipped = 0
    while len(losses) - skipped < _STEPS and skipped < _STEPS:
        optimizer.zero_grad()
        with amp.autocast(enabled=low):
            loss = nn.functional.mse_loss(model(batch).float(), target)
        losses.append(loss.item())
        scaler.scale(loss * factor).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
    return Run(losses, skipped, [p.detach() for p in model.parameters()])


def _expect_fp32_loss(
    amp: SuiteAmp, amp_scaler: ScalerFactory, actual: Run, *, label: str, factor: float = 1.0
) -> None:
    """Raise AmpFailure unless the loss fell as it does in fp32.

    A gradient has twelve roundings to the autocast dtype: weight, input and result of three products, and the gradient
    of each result. Each is at most u, and a converging run does not accumulate them, so that 16 u bound the relative
    error of the final loss to first order. (Measured on a CPU over twelve seeds: at most 5.3 u in fp16, 2.9 u in bf16;
    other initial weights change it by more than half.)
    """
    plain = _train(amp, amp.config.seed, low=False, scaler=amp_scaler(enabled=False), factor=factor)
    distance, allowed = abs(actual.losses[-1] / plain.losses[-1] - 1), 16 * amp.precision.u * amp.config.tolerance_scale
    amp.observe(f"final loss beside fp32, {label}", distance, kind="ratio", allowed=allowed)
    if not distance <= allowed or actual.losses[-1] > 0.2 * actual.losses[0]:
        raise AmpFailure(
            f"a training in {amp.precision.name} on {amp.target.id} does not reach the fp32 loss",
            label_before="fp32",
            before=f"{plain.losses[-1]:.5f} after {plain.losses[0]:.5f} at the start; allowed within {allowed:.1%}",
            now=f"{actual.losses[-1]:.5f} after {actual.losses[0]:.5f} at the start; {actual.skipped} steps skipped",
            likely="steps are skipped or taken wrongly, or gradients are not unscaled",
        )


@pytest.mark.parametrize("size", ["loss", "tiny loss"])
def test_training_with_a_scaler_reaches_the_fp32_loss(amp: SuiteAmp, amp_scaler: ScalerFactory, size: str) -> None:
    """Start from a scale that is too high for fp16: the scaler backs off to a stable scale."""
    factor = _TINY if size == "tiny loss" else 1.0
    init_scale = 2.0**21 / factor
    scaler = amp_scaler(init_scale=init_scale)
    actual = _train(amp, amp.config.seed, low=True, scaler=scaler, factor=factor)
    _expect_fp32_loss(amp, amp_scaler, actual, label=size, factor=factor)
    final = scaler.get_scale()
    assert final == init_scale / 2**actual.skipped, "the scale did not halve with each skipped step, and only then"
    if amp.precision.name == "fp16":
        assert 0 < actual.skipped < _STEPS / 4
    else:
        assert actual.skipped == 0, "bf16 has the range of float32: nothing overflows here"


@pytest.mark.amp(dtypes=["bf16"])
def test_bf16_needs_no_scaler(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The trajectory with a scaler has the bits of the one without, and it reaches the fp32 loss."""
    plain = _train(amp, amp.config.seed, low=True, scaler=amp_scaler(enabled=False))
    scaled = _train(amp, amp.config.seed, low=True, scaler=amp_scaler(init_scale=2.0**10))
    assert scaled.losses == plain.losses
    assert all(torch.equal(left, right) for left, right in zip(plain.parameters, scaled.parameters, strict=True))
    _expect_fp32_loss(amp, amp_scaler, plain, label="no scaler")


@pytest.mark.amp(dtypes=["fp16"])
def test_fp16_needs_one_where_gradients_are_tiny(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Without a scaler gradients below 2**-24 are 0, and the loss does not fall: the check above can fail."""
    actual = _train(amp, amp.config.seed, low=True, scaler=amp_scaler(enabled=False), factor=_TINY)
    assert actual.losses[-1] > 0.5 * actual.losses[0]


def _schedule(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: float | None) -> tuple[list[str], bool, float]:
    """Run one iteration with a scheduler: the warnings, whether the scale fell, and the learning rate."""
    run = training(amp, amp_scaler(init_scale=8.0))
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1, gamma=0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scale = run.scaler.get_scale()
        after, _ = run.iterate(bad)
        scheduler.step()
    return [str(w.message) for w in caught], after < scale, run.optimizer.param_groups[0]["lr"]


def test_a_scheduler_warns_after_a_skipped_first_step(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """A scheduler cannot detect a skipped step; the loop sees the lower scale, and skips it (pytorch/pytorch#44511)."""
    messages, fell, rate = _schedule(amp, amp_scaler, INF)
    assert fell
    assert len(messages) == 1
    assert "`lr_scheduler.step()` before `optimizer.step()`" in messages[0]
    assert rate == 0.25


def test_a_scheduler_does_not_warn_after_a_clean_first_step(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    messages, fell, rate = _schedule(amp, amp_scaler, None)
    assert not fell
    assert messages == []
    assert rate == 0.25


def test_a_gradient_penalty_is_scaled_once(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Follow torch's amp examples: scaled gradients of the first pass are unscaled explicitly."""
    actual = []
    for enabled in (False, True):
        run = training(amp, amp_scaler(init_scale=64.0, enabled=enabled))
        row = torch.tensor([[1.0, -2.0, 3.0, 0.5]], device=run.parameter.device)
        with amp.autocast():
            loss = torch.mm(row, run.parameter * run.parameter).float().sum()
        (scaled,) = torch.autograd.grad(run.scaler.scale(loss), run.parameter, create_graph=True)
        penalty = (scaled / run.scaler.get_scale()).square().sum()
        run.scaler.scale(loss + penalty).backward()
        run.scaler.step(run.optimizer)
        run.scaler.update()
        actual.append(run.parameter.detach())
    assert torch.equal(*actual)
