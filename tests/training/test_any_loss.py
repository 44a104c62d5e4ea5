"""check_training accepts the loss of the loop, and examines gradients, regions and its lines."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import Iteration
from pytest_amp.scaler.iteration import Train
from pytest_amp.training import Setup, Trajectory, check_training
from tests.check.models import (
    back,
    backward_inside,
    by_nothing,
    forward_in_a_region,
    marked,
    turned,
    usual,
    without_a_region,
    without_zeroing,
)
from tests.observing import unheeded

pytestmark = pytest.mark.usefixtures("one_thread")


def train(step: Train, *, precision: Precision = BF16, steps: int = 6) -> Trajectory:
    setup = Setup(
        turned(by_nothing),
        find_device("cpu"),
        precision,
        steps=steps,
        train=step,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    )
    return check_training(setup, unheeded)[0]


def goes_back_only(iteration: Iteration) -> None:
    """Run a usual loop in bf16, without a scaler."""
    back(forward_in_a_region(iteration))
    iteration.optimizer.step()


def returns_its_loss(iteration: Iteration) -> torch.Tensor:
    loss = forward_in_a_region(iteration)
    gradients = torch.autograd.grad(loss, list(iteration.model.parameters()))
    for parameter, gradient in zip(iteration.model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    iteration.optimizer.step()
    return loss


@pytest.mark.parametrize(
    ("step", "precision"),
    [(goes_back_only, BF16), (returns_its_loss, BF16), (usual, BF16), (usual, FP16)],
    ids=["backward", "returned", "scaled", "scaled fp16"],
)
def test_loss_of_a_loop_is_observed(step: Train, precision: Precision) -> None:
    losses = train(step, precision=precision).losses
    assert losses[-1] < losses[0] < 2


def returns_an_accuracy(iteration: Iteration) -> float:
    usual(iteration)
    return 0.5


def test_returned_accuracy_is_not_taken_for_the_loss() -> None:
    losses = train(returns_an_accuracy).losses
    assert losses[-1] < losses[0]
    assert losses[0] != 0.5


def test_loop_without_a_loss_is_refused() -> None:
    with pytest.raises(AmpUsageError, match=r"at \S*test_any_loss\.py:\d+ has no loss: it"):
        train(lambda _: None)


def own_region(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = iteration.model(iteration.batch["x"], iteration.batch["at"])
        loss: Any = functional.cross_entropy(logits, iteration.batch["y"])
    loss.backward()
    iteration.optimizer.step()


@torch.autocast("cpu", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
def decorated_loss(iteration: Iteration) -> Any:
    logits = iteration.model(iteration.batch["x"], iteration.batch["at"])
    return functional.cross_entropy(logits, iteration.batch["y"])


def own_region_by_a_decorator(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    decorated_loss(iteration).backward()
    iteration.optimizer.step()


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (own_region, own_region.__code__.co_firstlineno + 2),
        (own_region_by_a_decorator, inspect.unwrap(decorated_loss).__code__.co_firstlineno),
    ],
)
def test_float32_run_under_autocast_is_named_by_its_region(step: Train, line: int) -> None:
    with pytest.raises(AmpFailure, match="the run in float32 is under autocast") as raised:
        train(step)
    assert raised.match(rf"line +\S*test_any_loss\.py:{line}\b")


def garbage_in_one_layer(iteration: Iteration) -> None:
    """Replace the gradients of the last bias in mixed precision; the loss still falls."""
    back(forward_in_a_region(iteration))
    bias = dict(iteration.model.named_parameters())["last.bias"]
    if iteration.low and bias.grad is not None:
        bias.grad.copy_(bias.grad.roll(1))
    iteration.optimizer.step()


def test_wrong_gradient_of_one_layer_is_named() -> None:
    with pytest.raises(AmpFailure, match=r"step 0: the gradient of last\.bias is not that of float32"):
        train(garbage_in_one_layer, steps=2)


@pytest.mark.parametrize(
    ("step", "name", "words"),
    [
        (without_zeroing, "no_zeroing", "gradients are added to those of the iteration before"),
        (without_a_region, "no_region", "computes nothing under autocast"),
        (backward_inside, "backward_inside", "backward runs inside the region"),
    ],
    ids=["zeroing", "region", "backward"],
)
def test_line_of_a_mistake_is_named(step: Train, name: str, words: str) -> None:
    with pytest.raises(AmpFailure) as raised:
        train(step)
    assert words in str(raised.value)
    assert {int(line) for line in re.findall(r"models\.py:(\d+)", str(raised.value))} & marked(name)
