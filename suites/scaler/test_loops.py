"""Loops around the scaler: reused regions, accumulation, averaged weights, schedulers, two models, two losses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import INF, ScalerFactory, training

_SCALE = 2.0**10


def _model(amp: SuiteAmp, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(amp.config.seed + seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(amp.device.torch_device)


def _batch(amp: SuiteAmp, step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(amp.device.torch_device)


def _loss(amp: SuiteAmp, model: nn.Module, step: int, region: Any = None) -> torch.Tensor:
    with region if region is not None else amp.autocast():
        loss: torch.Tensor = model(_batch(amp, step)).float().square().mean()
    return loss


def _same(left: nn.Module, right: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["one object", "decorated", "step inside"])
def test_a_region_that_is_used_again_sees_the_stepped_weights(
    amp: SuiteAmp, amp_scaler: ScalerFactory, kind: str
) -> None:
    """Use one ``torch.autocast`` object for all iterations, a decorated forward, a whole iteration within a region.

    Casts of weights must not outlive their iteration: the run has the bits of the usual one.
    """
    ends, losses = [], []
    for usual in (True, False):
        model, scaler = _model(amp), amp_scaler(init_scale=_SCALE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        region = torch.autocast(amp.device.type, amp.dtype)

        @region
        def forward(step: int, model: nn.Module = model) -> torch.Tensor:
            result: torch.Tensor = model(_batch(amp, step)).float().square().mean()
            return result

        def iterate(
            step: int, loss_of: Callable[[int], torch.Tensor], optimizer: Any = optimizer, scaler: Any = scaler
        ) -> None:
            optimizer.zero_grad()
            loss = loss_of(step)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())

        for step in range(4):
            if usual:
                iterate(step, lambda step, model=model: _loss(amp, model, step))  # type: ignore[misc]
            elif kind == "one object":
                iterate(step, lambda step, m=model, r=region: _loss(amp, m, step, r))  # type: ignore[misc]
            elif kind == "decorated":
                iterate(step, forward)
            else:
                with region:
                    iterate(step, lambda step, model=model: _loss(amp, model, step))  # type: ignore[misc]
        ends.append(model)
    if losses[:4] != losses[4:] or not _same(*ends):
        raise AmpFailure(
            f"a training that reuses its autocast region ({kind}) differs on {amp.target.id}",
            label_before="rule",
            before=f"losses {losses[:4]}",
            now=f"losses {losses[4:]}",
            likely="the cast cache is not dropped at the end of a region: forward sees the weights of before the step",
        )


@pytest.mark.parametrize("bad", [None, 1, 3], ids=["clean", "bad batch 1", "bad batch 3"])
def test_accumulation_over_micro_batches(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: int | None) -> None:
    """Four micro-batches an iteration: a non-finite one skips the iteration, and the next is that of a clean run."""
    ends = []
    for planted in (bad, None):
        model, scaler = _model(amp), amp_scaler(init_scale=_SCALE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
        for iteration in range(3):
            if iteration == 1 and planted is None and bad is not None:
                continue  # the clean run leaves out the iteration that the other one skips
            optimizer.zero_grad()
            for micro in range(4):
                loss = _loss(amp, model, 10 * iteration + micro) / 4
                scaler.scale(loss * INF if (iteration, micro) == (1, planted) else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append((model, optimizer, scaler.get_scale()))
    (actual, with_steps, scale), (expected, steps, _) = ends
    assert scale == (_SCALE if bad is None else _SCALE / 2)
    if bad is None or amp.precision.name == "bf16":  # in fp16 a different scale rounds different subnormal values
        assert _same(actual, expected)
    counts = [{int(state["step"]) for state in o.state_dict()["state"].values()} for o in (with_steps, steps)]
    assert counts == [{3 if bad is None else 2}] * 2


@pytest.mark.parametrize("kind", ["average", "exponential"])
def test_averaged_weights_are_float32(amp: SuiteAmp, amp_scaler: ScalerFactory, kind: str) -> None:
    """AveragedModel over scaled steps, a skipped one among them, has the mean of the weights, in float32."""
    model, scaler = _model(amp), amp_scaler(init_scale=_SCALE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    function = get_ema_multi_avg_fn(0.75) if kind == "exponential" else None
    averaged = AveragedModel(model, multi_avg_fn=function)
    weights: list[torch.Tensor] = []
    for step in range(5):
        optimizer.zero_grad()
        loss = _loss(amp, model, step)
        scaler.scale(loss * INF if step == 2 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        averaged.update_parameters(model)
        weights.append(next(model.parameters()).detach().double())
    expected = weights[0]
    for count, weight in enumerate(weights[1:], 1):
        expected = (
            expected * 0.75 + weight * 0.25 if kind == "exponential" else expected + (weight - expected) / (count + 1)
        )
    actual = next(averaged.module.parameters())
    assert actual.dtype is torch.float32
    # Four updates of two roundings.
    torch.testing.assert_close(
        actual.double(), expected, rtol=8 * 2.0**-24, atol=8 * 2.0**-24 * float(expected.abs().max())
    )


def _told_to_schedule(
    amp: SuiteAmp, amp_scaler: ScalerFactory, plan: list[float | None]
) -> tuple[list[str], list[float]]:
    """Step a scheduler after each step that was not skipped, according to the scale; return warnings and rates."""
    run = training(amp, amp_scaler(init_scale=8.0))
    scheduler = lr_scheduler.StepLR(run.optimizer, 1, gamma=0.5)
    rates = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for bad in plan:
            before = run.scaler.get_scale()
            after, _ = run.iterate(bad)
            if after >= before:
                scheduler.step()
            rates.append(run.optimizer.param_groups[0]["lr"])
    return [str(warning.message) for warning in caught], rates


def test_a_scheduler_that_waits_for_steps_does_not_warn(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The scale shows whether a step was skipped; a scheduler ignores skipped steps (pytorch/pytorch#44511, #55585)."""
    assert _told_to_schedule(amp, amp_scaler, [INF, INF, None, None, INF, None]) == (
        [],
        [0.5, 0.5, 0.25, 0.125, 0.125, 0.0625],
    )


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=6),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=6),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_run_beside_the_scaler(amp: SuiteAmp, amp_scaler: ScalerFactory, scheduler: str) -> None:
    """Rates are those of a run without a scaler and without overflow, step for step."""
    rates: list[list[float]] = []
    for enabled in (True, False):
        run = training(amp, amp_scaler(init_scale=8.0, enabled=enabled))
        instance: Any = SCHEDULERS[scheduler](run.optimizer)
        actual = []
        for _ in range(5):
            run.backward()
            run.scaler.step(run.optimizer)
            run.scaler.update()
            instance.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
            actual.append(run.optimizer.param_groups[0]["lr"])
        rates.append(actual)
    assert rates[0] == rates[1]
    assert len(set(rates[0])) > 1


@pytest.mark.parametrize("bad", [None, 0, 1], ids=["clean", "first overflows", "second overflows"])
def test_two_models_and_two_losses_with_one_scaler(amp: SuiteAmp, amp_scaler: ScalerFactory, bad: int | None) -> None:
    """Train two models with two losses of both, as in a GAN; an overflow skips its own optimizer, the other one steps.

    The gradients of one loss reach both models, so that an inf in a loss would skip both: it is planted in one model's
    gradients.
    """
    ends = []
    for enabled in (True, False):
        models = [_model(amp, seed) for seed in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.125) for model in models]
        scaler = amp_scaler(init_scale=_SCALE, enabled=enabled)
        with amp.autocast():
            outputs = [model(_batch(amp, 0)).float() for model in models]
            losses = [(outputs[0] * 2 + outputs[1]).square().mean(), (outputs[0] - outputs[1]).square().mean()]
        # Scaled explicitly without a scaler, so that both have the same subnormal gradients.
        scaled: Any = [scaler.scale(loss) if enabled else loss * _SCALE for loss in losses]
        scaled[0].backward(retain_graph=True)
        scaled[1].backward()
        if bad is not None and enabled:
            gradient = list(models[bad].parameters())[2].grad
            assert gradient is not None
            gradient[1, 2] = INF
        for index, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            if not enabled:
                _unscale(model)
            if enabled or index != bad:
                scaler.step(optimizer)
        scaler.update()
        ends.append(models)
        assert scaler.get_scale() == (1.0 if not enabled else _SCALE if bad is None else _SCALE / 2)
    for scaled_model, plain_model in zip(*ends, strict=True):
        for actual, expected in zip(scaled_model.parameters(), plain_model.parameters(), strict=True):
            assert torch.equal(actual, expected)


def _unscale(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.div_(_SCALE)


def test_a_gradient_penalty_that_overflows_is_skipped(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """The inf of the first pass goes through the penalty into every gradient."""
    run = training(amp, amp_scaler(init_scale=64.0))
    row = torch.tensor([[1.0, -2.0, 3.0, 0.5]], device=run.parameter.device)
    with amp.autocast():
        loss = torch.mm(row, run.parameter * run.parameter).float().sum()
    (scaled,) = torch.autograd.grad(run.scaler.scale(loss) * INF, run.parameter, create_graph=True)
    penalty = (scaled / run.scaler.get_scale()).square().sum()
    total: Any = run.scaler.scale(loss + penalty)
    total.backward()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    assert bool((run.parameter == 1).all())
    assert run.state == (32.0, 0)


def test_a_list_of_losses_reaches_the_parameters(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """``scale`` of a list keeps each loss's graph: one backward of all of them."""
    run = training(amp, amp_scaler(init_scale=8.0))
    losses = [run.parameter.sum(), (run.parameter * 2).sum()]
    scaled: Any = run.scaler.scale(losses)
    assert all(loss.requires_grad for loss in scaled)
    backward: Any = torch.autograd.backward
    backward(scaled)
    run.scaler.step(run.optimizer)
    assert bool((run.parameter == 1 - 0.5 * 3).all())
