"""check_scaler accepts unusual right steps of one or several optimizers, and reports faults of late and small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import Iteration, Train
from tests.observing import Noted
from tests.scaler.checked import checked
from tests.scaler.test_several_optimizers import (
    Adversaries,
    back,
    batch,
    both_losses,
    critic_loss,
    critic_only,
    generator_loss,
    of_critic,
    second,
    take,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class WithTemperature(Adversaries):
    """Generator, critic and a temperature, which is trained without a scaler."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.zeros(()))


def halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


class Hooked(Adversaries):
    """Model whose hooks halve its accumulated gradients."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(halve)  # type: ignore[no-untyped-call]  # torch's


class Wrapper(torch.optim.Optimizer):
    """Optimizer that steps another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def check(train: Train, build: Callable[[], nn.Module] = Adversaries) -> Noted:
    noted = Noted()
    case = Case("adversaries", build, batch, both_losses if build is Adversaries else critic_loss)
    checked(case, noted, train=train, make_optimizer=lambda parameters: of_critic([p for p in parameters if p.dim()]))
    return noted


def freezes_the_critic(iteration: Iteration) -> None:
    """Train a generator with a frozen critic, which requires gradients again in the next iteration."""
    generator, critic = second(iteration), iteration.model.get_submodule("critic")
    critic.requires_grad_(requires_grad=True)
    take(iteration, iteration.optimizer, critic_loss)
    critic.requires_grad_(requires_grad=False)
    take(iteration, generator, generator_loss)
    iteration.scaler.update()


def temperature_of(iteration: Iteration) -> torch.optim.Optimizer:
    parameter = iteration.model.get_parameter("temperature")
    optimizer: torch.optim.Optimizer = iteration.kept.setdefault("temperature", torch.optim.Adam([parameter], lr=1e-3))
    return optimizer


def trains_a_temperature_without_the_scaler(iteration: Iteration) -> None:
    temperature = temperature_of(iteration)
    temperature.zero_grad()
    iteration.optimizer.zero_grad()
    back(iteration, critic_loss)
    (0.3 * iteration.model.get_parameter("temperature").exp()).backward()  # type: ignore[no-untyped-call]  # torch's
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()
    temperature.step()


def accumulates_a_temperature_without_the_scaler(iteration: Iteration) -> None:
    temperature = temperature_of(iteration)
    if iteration.index % 2 == 0:
        temperature.zero_grad()
    iteration.optimizer.zero_grad()
    back(iteration, critic_loss)
    (0.3 * iteration.model.get_parameter("temperature").exp()).backward()  # type: ignore[no-untyped-call]  # torch's
    if iteration.index % 2:
        temperature.step()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def sharpness_aware(iteration: Iteration) -> None:
    """Take the step of SAM: the gradients are those of perturbed weights, and the scale is updated after each pass."""
    optimizer, scaler = iteration.optimizer, iteration.scaler
    parameters = [*iteration.model.get_submodule("critic").parameters()]
    optimizer.zero_grad()
    back(iteration, critic_loss)
    scaler.unscale_(optimizer)
    gradients = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    size = torch.stack([gradient.norm() for gradient in gradients]).norm()
    scaler.update()
    if not size.isfinite():
        return
    steps = [0.05 / (size + 1e-12) * gradient for gradient in gradients]
    with torch.no_grad():
        for parameter, step in zip(parameters, steps, strict=True):
            parameter.add_(step)
    optimizer.zero_grad()
    back(iteration, critic_loss)
    with torch.no_grad():
        for parameter, step in zip(parameters, steps, strict=True):
            parameter.sub_(step)
    scaler.step(optimizer)
    scaler.update()


def steps_a_wrapper(iteration: Iteration) -> None:
    take(iteration, iteration.kept.setdefault("wrapper", Wrapper(iteration.optimizer)), critic_loss)
    iteration.scaler.update()


def warms_up_from_zero(iteration: Iteration) -> None:
    if "schedule" not in iteration.kept:
        iteration.kept["schedule"] = torch.optim.lr_scheduler.LambdaLR(iteration.optimizer, lambda index: index / 3)
    take(iteration, iteration.optimizer, critic_loss)
    iteration.scaler.update()
    iteration.kept["schedule"].step()


@pytest.mark.parametrize(
    ("train", "build"),
    [
        (freezes_the_critic, Adversaries),
        (trains_a_temperature_without_the_scaler, WithTemperature),
        (accumulates_a_temperature_without_the_scaler, WithTemperature),
        (critic_only, Hooked),
        (sharpness_aware, Adversaries),
        (steps_a_wrapper, Adversaries),
        (warms_up_from_zero, Adversaries),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # the first step is skipped
def test_unusual_step_passes(train: Train, build: Callable[[], nn.Module]) -> None:
    assert not check(train, build).notes


def repairs_gradients_later(iteration: Iteration) -> None:
    take(iteration, iteration.optimizer, critic_loss)
    if iteration.index >= 4:
        generator = second(iteration)
        generator.zero_grad()
        back(iteration, generator_loss)
        for parameter in iteration.model.get_submodule("generator").parameters():
            assert parameter.grad is not None
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        iteration.scaler.step(generator)
    iteration.scaler.update()


def clips_small_scaled_gradients(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    generator.zero_grad()
    back(iteration, lambda model, data: 1e-4 * generator_loss(model, data))
    nn.utils.clip_grad_norm_(iteration.model.get_submodule("generator").parameters(), 1e-5)
    iteration.scaler.step(generator)
    iteration.scaler.update()


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (repairs_gradients_later, "a step with an overflow is taken"),
        (clips_small_scaled_gradients, "the gradients that the optimizer sees depend on the scale"),
    ],
)
def test_fault_of_a_late_or_small_optimizer_is_reported(train: Train, words: str) -> None:
    with pytest.raises(AmpFailure, match=words) as raised:
        check(train)
    assert raised.match(r"test_unusual_optimizers\.py:\d+")
