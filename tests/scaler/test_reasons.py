"""Likely causes in the messages of check_scaler: operators that overflow, or that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import mlp
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import Iteration, Train, reasons, standard_step
from pytest_amp.scaler.refusal import refused
from tests.scaler.test_check_scaler import finish, forward, run

_NO_CHECKS = "No inf checks were recorded for this optimizer."


def differs_in_the_low_dtype(iteration: Iteration) -> None:
    """Scale gradients wrongly at small scales in mixed precision alone, as a wrong kernel would."""
    scaled: Any = iteration.scaler.scale(forward(iteration))
    scaled.backward()
    if iteration.low and iteration.scaler.get_scale() <= 2.0**12:
        for parameter in iteration.model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(2.0)
    finish(iteration)


def test_different_operator_is_the_likely_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reasons, "likely_operator", lambda *_: "gelu_backward in 1: has 300 times the error of its model"
    )
    with pytest.raises(AmpFailure, match="depend on the scale") as raised:
        run(differs_in_the_low_dtype)
    assert raised.match("likely +gelu_backward in 1: has 300 times the error of its model")


def enlarges_weights(iteration: Iteration) -> None:
    """Multiply weights in the second iteration, so that they exceed the range of fp16."""
    if iteration.index == 1:
        with torch.no_grad():
            next(iteration.model.parameters()).mul_(1e7)
    standard_step(iteration)


def test_overflowing_operator_is_the_likely_cause_of_a_skipped_step() -> None:
    with pytest.raises(AmpFailure, match="iteration 1: a step is skipped, since it overflows although no") as raised:
        run(enlarges_weights)
    assert raised.match(r"likely +cast in \S+ \(Linear\), forward pass.*: overflow: up to")


def ignores_the_loss(iteration: Iteration) -> None:
    """Make all gradients zero: no step overflows, and no weight changes."""
    finish_with: Any = iteration.scaler.scale(forward(iteration) * 0)
    finish_with.backward()
    finish(iteration)


def test_step_with_zero_gradients_names_no_overflow() -> None:
    with pytest.raises(AmpFailure, match="a step is skipped, or does nothing, without an overflow") as raised:
        run(ignores_the_loss)
    assert raised.match("likely +the loss reaches no parameter, its gradient is zero")


def test_refusals_of_gradscaler_have_their_likely_cause() -> None:
    text = str(refused("it", ValueError("Attempting to unscale FP16 gradients.")))
    assert "likely    parameters that are float16: keep them in float32" in text
    assert "unscale_ is called twice" in str(refused("it", RuntimeError("unscale_() has already been called")))
    assert "no parameter of the optimizer has a gradient" in str(refused("it", AssertionError(_NO_CHECKS)))
    prior = "No inf checks were recorded prior to update."
    assert "update belongs behind the step" in str(refused("it", AssertionError(prior)))
    assert "belongs before scaler.step" in str(refused("it", RuntimeError("unscale_() is being called after step().")))
    assert "takes no closure" in str(refused("it", RuntimeError("Closure use is not currently supported")))
    assert "scaler.scale(loss) was never called" in str(refused("it", AssertionError("but _scale is None.")))


def detaches(iteration: Iteration) -> None:
    """Scale a loss that is cut off from the model."""
    loss = forward(iteration).detach().requires_grad_()
    scaled: Any = iteration.scaler.scale(loss)
    scaled.backward()
    finish(iteration)


def never_goes_back(iteration: Iteration) -> None:
    """Scale a loss without a backward pass."""
    iteration.scaler.scale(forward(iteration))
    finish(iteration)


def passes_a_closure(iteration: Iteration) -> None:
    """Compute the loss in a closure of the optimizer."""

    def closure() -> float:
        scaled: Any = iteration.scaler.scale(forward(iteration))
        scaled.backward()
        return float(scaled)

    iteration.scaler.step(iteration.optimizer, closure)
    iteration.scaler.update()


@pytest.mark.parametrize(
    ("train", "likely"),
    [
        (detaches, "zero_grad.. was called between backward and scaler.step, the loss was detached"),
        (never_goes_back, "backward was not called before scaler.step"),
        (passes_a_closure, "scaler.step takes no closure"),
    ],
)
def test_refusal_of_a_step_has_the_cause_of_that_step(train: Train, likely: str) -> None:
    with pytest.raises(AmpFailure, match="GradScaler refuses the training step") as raised:
        run(train)
    assert raised.match(f"likely +.*{likely}")


def divides_by_the_scale(iteration: Iteration) -> None:
    """Divide the loss by the scale, and let the scaler divide the gradients, too."""
    scaled: Any = iteration.scaler.scale(forward(iteration) / iteration.scaler.get_scale())
    scaled.backward()
    finish(iteration)


def accumulates_behind_unscale(iteration: Iteration) -> None:
    """Unscale the gradients of the first of two micro-batches alone."""
    for part in range(2):
        scaled: Any = iteration.scaler.scale(forward(iteration) / 2)
        scaled.backward()
        if not part:
            iteration.scaler.unscale_(iteration.optimizer)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@pytest.mark.parametrize(
    ("train", "offset", "likely"),
    [
        (divides_by_the_scale, 2, "divided by the scale there, and again by scaler.step"),
        (accumulates_behind_unscale, 4, "scaled gradients are added to those that unscale_ has divided"),
    ],
)
def test_gradients_that_depend_on_the_scale_have_their_line_and_cause(train: Train, offset: int, likely: str) -> None:
    with pytest.raises(AmpFailure, match="the gradients that the optimizer sees depend on the scale") as raised:
        run(train)
    assert raised.match(f"likely +.*{likely}")
    assert isinstance(raised.value, AmpFailure)
    assert raised.value.site == f"tests/scaler/test_reasons.py:{train.__code__.co_firstlineno + offset}"


def infinite_at_times(iteration: Iteration) -> None:
    """Make gradients of a smaller scale non-finite, like a kernel that reads out of bounds."""
    scaled: Any = iteration.scaler.scale(forward(iteration))
    scaled.backward()
    if iteration.scaler.get_scale() <= 2.0**12:
        for parameter in iteration.model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(float("inf"))
    finish(iteration)


def test_gradients_finite_at_one_scale_only_fail() -> None:
    with pytest.raises(AmpFailure, match="the gradients that the optimizer sees depend on the scale") as raised:
        run(infinite_at_times)
    assert raised.match("now +relative distance inf")


class HugeGradient(nn.Module):
    """Model with a huge gradient of an activation, which reaches no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y.float() + (y * 0).float() * 4e11


def test_gradients_that_no_scale_fits_are_said_to_underflow() -> None:
    with pytest.raises(AmpFailure, match="no scale fits the gradients: at one where all are finite") as raised:
        run(standard_step, case=replace(mlp(), build=HugeGradient))
    assert raised.match(
        r"now +\d+% of the gradients' size is 0 at a scale of \S+; at \S+, cast .*, backward pass.*: overflow"
    )
