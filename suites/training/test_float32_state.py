"""Float32 state of a training: parameters, buffers, gradients, every tensor of the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.training import Setup, images, rounded_parameters, rounded_state, run

from .trajectories import TASKS, trained

#: Not Rprop: it retains the last gradient, which comes from a low-precision product.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "AdamW, loop": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False, fused=False, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1, t0=2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
}


def _expect_float32(rounded: list[Any], what: str, amp: SuiteAmp) -> None:
    if rounded:
        raise AmpFailure(
            f"{what} is not in float32 after a training in {amp.precision.name} on {amp.target.id}",
            label_before="rule",
            before="parameters, buffers and optimizer state are float32, and not just by name",
            now=", ".join(str(entry) for entry in rounded[:4]),
            likely="something casts weights or state in place: small updates round away from then on",
        )


@pytest.mark.parametrize("task", TASKS)
def test_parameters_and_buffers_stay_float32(amp: SuiteAmp, task: str) -> None:
    """Dtype and values are float32's, after every kind of step of a real task."""
    actual = trained(amp, task).run(low=True)
    for name, tensor in [*actual.model.named_parameters(), *actual.model.named_buffers()]:
        assert tensor.dtype is (torch.float32 if tensor.is_floating_point() else torch.int64), name
    _expect_float32(rounded_parameters(actual.model), "a parameter", amp)
    gradients = {name: p.grad for name, p in actual.model.named_parameters()}
    assert {name for name, grad in gradients.items() if grad is None or grad.dtype is not torch.float32} == set()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_of_optimizers_stays_float32(amp: SuiteAmp, optimizer: str) -> None:
    """Check each floating-point tensor of the state, between any two steps."""
    task = images()
    low: list[str] = []

    def inspect(index: int, iteration: Any) -> None:
        entries = rounded_state(iteration.model, iteration.optimizer, hollow=index >= 2)
        low.extend(f"step {index}: {entry}" for entry in entries)

    setup = Setup(
        task.case, amp.device, amp.precision, steps=6, seed=amp.config.seed, make_optimizer=OPTIMIZERS[optimizer],
        fresh=True,
    )  # fmt: skip
    trajectory = run(setup, low=True, inspect=inspect)
    states = [v for state in trajectory.optimizer.state.values() for v in state.values()]
    assert any(isinstance(value, torch.Tensor) and value.numel() > 64 for value in states), "there is no state"
    _expect_float32(low, f"the state of {optimizer}", amp)


@pytest.mark.parametrize("task", TASKS)
def test_updates_do_not_round_away(amp: SuiteAmp, task: str) -> None:
    """The share of parameters that a gradient does not change is at most one percent above float32's."""
    runs = trained(amp, task)
    float32, low = ([step.lost for step in runs.run(low=precision_is_low).steps] for precision_is_low in (False, True))
    amp.observe(f"{task}/updates that round away", max(low), kind="ratio", allowed=max(float32) + 0.01)
    worst = max(range(len(low)), key=lambda index: low[index] - float32[index])
    if low[worst] > float32[worst] + 0.01:
        raise AmpFailure(
            f"{low[worst]:.1%} of the updates of step {worst} of {task} round away on {amp.target.id}",
            label_before="fp32",
            before=f"{float32[worst]:.1%}",
            now=f"{low[worst]:.1%} in {amp.precision.name}",
            likely="weights or their updates were rounded to a low dtype",
        )


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_small_update_arrives(amp: SuiteAmp, kind: str) -> None:
    """A thousand updates of 2**-14 of the weight make 6 % in float32; in bf16 and fp16 each rounds away."""
    weight = nn.Parameter(torch.ones(64, 64, device=amp.device.torch_device))
    rate = 2.0**-14
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD([weight], lr=rate) if kind == "SGD" else torch.optim.Adam([weight], lr=rate)
    )
    assert torch.ones((), dtype=amp.dtype) - rate == 1, "the update does not round away in the low dtype"
    row = torch.ones(1, 64, device=amp.device.torch_device)
    for _ in range(1000):
        optimizer.zero_grad()
        with amp.autocast():
            product = row @ weight
        assert product.dtype is amp.dtype
        torch.autograd.backward(product.float().sum())  # the gradient is one everywhere
        optimizer.step()
    # A thousand subtractions that round to float32, and Adam's quotient, which is one except for eps.
    moved = float((1 - weight.detach()).double().mean())
    assert moved == pytest.approx(1000 * rate, rel=1e-2)
