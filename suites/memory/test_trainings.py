"""Whole trainings, with optimizer, scaler and schedule: each step ends with as much memory as the one before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target
from pytest_amp.scaler.optimizers import make_optimizer, optimizers_on, variant_of
from pytest_amp.torch_private import live_storages

#: After the second step everything exists that a training creates once.
_FIRST, _STEPS = 2, 6


def _expect_steady(amp: SuiteAmp, subject: str, step: Callable[[int], object], *, arguments: Any = ()) -> None:
    alive = []
    with live_storages(given=arguments) as holding:
        for index in range(_STEPS):
            step(index)
            alive.append(sum(holding()))
        if len(set(alive[_FIRST:])) > 1:  # memory of a reference cycle is freed once Python collects it
            gc.collect()
            alive[-1] = sum(holding())
    if alive[-1] > alive[_FIRST]:
        raise AmpFailure(
            f"a training with {subject} on {amp.target.id} holds more memory after each step",
            label_before=f"step {_FIRST + 1}",
            before=f"{alive[_FIRST]} bytes",
            now=f"{', '.join(map(str, alive[_FIRST + 1 :]))} bytes after the next {_STEPS - _FIRST - 1} steps",
            likely="losses, gradients or casts of earlier steps are kept: by backward, the optimizer, the scaler",
        )


def _model(amp: SuiteAmp) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(amp.device.torch_device)


def _optimizers(target: Target) -> Iterator[object]:
    """Yield the optimizers that take dense gradients."""
    for optimizer in optimizers_on(target.device.torch_device):
        if not variant_of(optimizer).sparse:
            yield pytest.param(optimizer, id=optimizer)


@pytest.mark.amp(dtypes=["bf16"])  # inputs of optimizers are float32
@pytest.mark.amp_parametrize("optimizer", _optimizers)
def test_optimizers_keep_no_gradients(amp: SuiteAmp, amp_scaler: Any, optimizer: str) -> None:
    """Every implementation of each optimizer, with new gradients in each step, one of them skipped for an overflow."""
    model = _model(amp)
    weights = [p for p in model.parameters() if p.dim() == 2]  # Muon takes no other shapes
    instance, scaler = make_optimizer(optimizer, weights), amp_scaler(init_scale=8.0)
    batch = torch.randn(4, 8, device=amp.device.torch_device)

    def step(index: int) -> None:
        model.zero_grad(set_to_none=True)
        with amp.autocast():
            loss: Any = model(batch).float().square().mean()
        scaler.scale(loss * (float("inf") if index == _STEPS - 2 else 1.0)).backward()
        scaler.step(instance)
        scaler.update()

    _expect_steady(amp, optimizer, step, arguments=[*model.parameters(), batch])


def _accumulated(_: nn.Module, losses: list[Any], scaler: Any) -> None:
    for loss in losses:
        scaler.scale(loss / len(losses)).backward()


def _twice(_: nn.Module, losses: list[Any], scaler: Any) -> None:
    for loss in losses:
        scaler.scale(loss).backward(retain_graph=True)
        scaler.scale(loss).backward()


def _by_inputs(model: nn.Module, losses: list[Any], scaler: Any) -> None:
    for loss in losses:
        scaler.scale(loss).backward(inputs=list(model.parameters()))


def _with_a_penalty(model: nn.Module, losses: list[Any], scaler: Any) -> None:
    for loss in losses:
        gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        penalty: Any = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        (scaler.scale(loss) + penalty).backward()


def _by_a_function(_: nn.Module, losses: list[Any], scaler: Any) -> None:
    torch.autograd.backward([scaler.scale(loss) for loss in losses])


#: Ways to run backward that could retain a loss.
BACKWARD: dict[str, Callable[[nn.Module, list[Any], Any], None]] = {
    "the method, micro-batches": _accumulated,
    "the method, a graph used twice": _twice,
    "the method, with inputs": _by_inputs,
    "a penalty on gradients": _with_a_penalty,
    "the function": _by_a_function,
}


@pytest.mark.parametrize("clipping", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize("way", BACKWARD)
def test_a_training_keeps_nothing_of_its_steps(amp: SuiteAmp, amp_scaler: Any, way: str, *, clipping: bool) -> None:
    """No way of running backward retains memory, with a schedule, and with gradients that are set to zero."""
    model = _model(amp)
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), amp_scaler(init_scale=8.0)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches = [torch.randn(4, 8, device=amp.device.torch_device) for _ in range(2)]

    def step(_: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        losses = []
        for batch in batches:
            with amp.autocast():
                losses.append(model(batch).float().square().mean())
        BACKWARD[way](model, losses, scaler)
        if clipping:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    _expect_steady(amp, f"{way}{', clipped' if clipping else ''}", step, arguments=[*model.parameters(), *batches])
