"""check_scaler judges each of several optimizers by its own gradients, and each update by the steps before it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import Iteration, TraceStep, Train
from tests.observing import Noted
from tests.scaler.checked import checked

pytestmark = pytest.mark.usefixtures("one_thread")


class Adversaries(nn.Module):
    """Generator and critic."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))


def batch() -> dict[str, Tensor]:
    return {"noise": torch.randn(8, 4), "real": torch.randn(8, 8)}


def against(logits: Tensor, target: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits.float(), torch.full(logits.shape, target))


def critic_loss(model: Any, data: dict[str, Tensor]) -> Tensor:
    fake = model.generator(data["noise"]).detach()
    return against(model.critic(data["real"]), 1.0) + against(model.critic(fake), 0.0)


def generator_loss(model: Any, data: dict[str, Tensor]) -> Tensor:
    return against(model.critic(model.generator(data["noise"])), 1.0)


def both_losses(model: Any, data: dict[str, Tensor]) -> Tensor:
    return critic_loss(model, data) + generator_loss(model, data)


def of_critic(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters[4:], lr=1e-3)


def check(train: Train, noted: Noted | None = None) -> tuple[TraceStep, ...]:
    case = Case("adversaries", Adversaries, batch, both_losses)
    return checked(case, noted, train=train, make_optimizer=of_critic)


def model_of(iteration: Iteration) -> Adversaries:
    assert isinstance(iteration.model, Adversaries)
    return iteration.model


def second(iteration: Iteration, **options: Any) -> torch.optim.Optimizer:
    """Return the optimizer of the generator, which the training step makes and keeps."""
    if "second" not in iteration.kept:
        iteration.kept["second"] = torch.optim.AdamW(model_of(iteration).generator.parameters(), lr=1e-3, **options)
    optimizer: torch.optim.Optimizer = iteration.kept["second"]
    return optimizer


def back(iteration: Iteration, loss_of: Callable[[Any, Any], Tensor]) -> None:
    with iteration.autocast():
        loss = loss_of(iteration.model, iteration.batch)
    iteration.scaler.scale(loss).backward()


def take(iteration: Iteration, optimizer: torch.optim.Optimizer, loss_of: Callable[[Any, Any], Tensor]) -> None:
    optimizer.zero_grad()
    back(iteration, loss_of)
    iteration.scaler.step(optimizer)


def critic_first(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    take(iteration, generator, generator_loss)
    iteration.scaler.update()


def generator_first(iteration: Iteration) -> None:
    """Leave the gradients of the generator's loss in the critic, whose own backward pass begins without them."""
    take(iteration, second(iteration), generator_loss)
    take(iteration, iteration.optimizer, critic_loss)
    iteration.scaler.update()


def zeroed_in_place(iteration: Iteration) -> None:
    for optimizer, loss_of in ((second(iteration), generator_loss), (iteration.optimizer, critic_loss)):
        optimizer.zero_grad(set_to_none=False)
        back(iteration, loss_of)
        iteration.scaler.step(optimizer)
    iteration.scaler.update()


def one_loss(iteration: Iteration) -> None:
    optimizers = iteration.optimizer, second(iteration)
    for optimizer in optimizers:
        optimizer.zero_grad()
    back(iteration, both_losses)
    for optimizer in optimizers:
        iteration.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)
        iteration.scaler.step(optimizer)
    iteration.scaler.update()


def fused(iteration: Iteration) -> None:
    second(iteration, fused=True)
    critic_first(iteration)


def critic_more_often(iteration: Iteration) -> None:
    """Take three steps of the critic for one of the generator, each with its update."""
    for _ in range(3):
        take(iteration, iteration.optimizer, critic_loss)
        iteration.scaler.update()
    take(iteration, second(iteration), generator_loss)
    iteration.scaler.update()


def generator_at_times(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    if iteration.index % 3 == 1:
        take(iteration, generator, generator_loss)
    iteration.scaler.update()


def in_turn(iteration: Iteration) -> None:
    generator = second(iteration)
    if iteration.index % 2:
        take(iteration, iteration.optimizer, critic_loss)
    else:
        take(iteration, generator, generator_loss)
    iteration.scaler.update()


def two_whole_steps(iteration: Iteration) -> None:
    for _ in range(2):
        take(iteration, iteration.optimizer, critic_loss)
        iteration.scaler.update()


def accumulates_one_of_them(iteration: Iteration) -> None:
    """Step the generator with the gradients of two iterations, between which the scale may change."""
    generator = second(iteration)
    if iteration.index % 2 == 0:
        generator.zero_grad()
    back(iteration, generator_loss)
    take(iteration, iteration.optimizer, critic_loss)
    if iteration.index % 2:
        iteration.scaler.step(generator)
    iteration.scaler.update()


RIGHT = [
    critic_first,
    generator_first,
    zeroed_in_place,
    one_loss,
    fused,
    critic_more_often,
    generator_at_times,
    in_turn,
    two_whole_steps,
]


@pytest.mark.parametrize("train", RIGHT)
def test_step_of_several_optimizers_passes(train: Train) -> None:
    noted = Noted()
    traced = check(train, noted)
    assert any(step.found_inf for step in traced)
    assert not noted.notes
    assert not noted["adversaries/swallowed overflows"]


def test_optimizer_that_steps_once_is_noted() -> None:
    def warms_up(iteration: Iteration) -> None:
        (critic_first if iteration.index == 0 else critic_only)(iteration)

    noted = Noted()
    check(warms_up, noted)
    assert len(noted.notes) == 1
    assert noted.notes[0].startswith("adversaries: optimizer 2 of 2, in the order of their first steps, steps in it")


def critic_only(iteration: Iteration) -> None:
    take(iteration, iteration.optimizer, critic_loss)
    iteration.scaler.update()


def updates_between(iteration: Iteration) -> None:
    optimizers = iteration.optimizer, second(iteration)
    for optimizer in optimizers:
        optimizer.zero_grad()
    back(iteration, both_losses)
    iteration.scaler.step(optimizers[0])
    iteration.scaler.update()  # wrong
    iteration.scaler.step(optimizers[1])
    iteration.scaler.update()


def updates_too_early(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    iteration.scaler.update()
    take(iteration, generator, generator_loss)


def forgets_update(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    take(iteration, generator, generator_loss)


def forgets_one_zero_grad(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    back(iteration, generator_loss)
    iteration.scaler.step(generator)
    iteration.scaler.update()


def clips_scaled_gradients(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    generator.zero_grad()
    back(iteration, generator_loss)
    nn.utils.clip_grad_norm_(model_of(iteration).generator.parameters(), 0.1)  # wrong
    iteration.scaler.step(generator)
    iteration.scaler.update()


def repairs_gradients(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    generator.zero_grad()
    back(iteration, generator_loss)
    for parameter in model_of(iteration).generator.parameters():
        assert parameter.grad is not None
        parameter.grad.nan_to_num_(0.0, 0.0, 0.0)  # wrong
    iteration.scaler.step(generator)
    iteration.scaler.update()


def steps_past_the_scaler(iteration: Iteration) -> None:
    generator = second(iteration)
    take(iteration, iteration.optimizer, critic_loss)
    generator.zero_grad()
    back(iteration, generator_loss)
    generator.step()  # wrong
    iteration.scaler.update()


def shares_parameters(iteration: Iteration) -> None:
    optimizers = iteration.optimizer, torch.optim.AdamW(model_of(iteration).critic[0].parameters(), lr=1e-3)
    optimizers[0].zero_grad()
    back(iteration, critic_loss)
    for optimizer in optimizers:
        iteration.scaler.step(optimizer)  # wrong
    iteration.scaler.update()


def steps_without_zeroing(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    for _ in range(2):
        back(iteration, critic_loss)
        iteration.scaler.step(iteration.optimizer)
        iteration.scaler.update()


WRONG = [
    (updates_between, "iteration 1: scaler.update comes between the backward pass and the step of 4 parameters"),
    (updates_too_early, "iteration 0: the training step calls scaler.step after its last scaler.update"),
    (forgets_update, "iteration 0: the training step calls scaler.update 0 times"),
    (forgets_one_zero_grad, "iteration 1: gradients are added to those of the iteration before"),
    (accumulates_one_of_them, "iteration 1: gradients are added to those of the iteration before"),
    (clips_scaled_gradients, "the gradients that the optimizer sees depend on the scale"),
    (repairs_gradients, "a step with an overflow is taken"),
    (steps_past_the_scaler, "an optimizer steps past the scaler, and its gradients depend on the scale"),
    (shares_parameters, "2 parameters belong to two optimizers: critic.0.bias, critic.0.weight"),
    (steps_without_zeroing, "iteration 1: gradients are added to those of a step in the same iteration"),
]


@pytest.mark.parametrize(("train", "words"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_step_of_several_optimizers_is_reported(train: Train, words: str) -> None:
    with pytest.raises(AmpFailure) as raised:
        check(train)
    message = str(raised.value)
    assert words in message
    source, first = inspect.getsourcelines(train)
    marked = {first + number for number, line in enumerate(source) if "# wrong" in line}
    named = {int(line) for line in re.findall(r"test_several_optimizers\.py:(\d+)", message)}
    assert named, message
    assert not marked or marked & named, message
