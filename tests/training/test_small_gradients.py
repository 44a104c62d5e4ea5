"""Gradients that are zero but for rounding, or too small to matter, are no fault of a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import standard_step
from pytest_amp.training import Setup, TrainingIteration, TrainingStep, check_training
from tests.observing import unheeded


def check(case: Case, train: TrainingStep = standard_step, *, precision: Precision = BF16, steps: int = 12) -> None:
    setup = Setup(
        case, find_device("cpu"), precision, steps=steps, train=train,
        make_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    )  # fmt: skip
    check_training(setup, unheeded)


def step_after(iteration: TrainingIteration, spoil: Callable[[], None] | None = None, factor: float = 1.0) -> None:
    """Take the usual step, with ``factor`` times the loss, and call ``spoil`` before the optimizer."""
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    scaled: Any = iteration.scaler.scale(loss * factor)
    scaled.backward()
    if spoil is not None:
        spoil()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


class Normalized(nn.Module):
    """Layer before BatchNorm, which subtracts its bias, and one score per position, whose softmax ignores its bias.

    Most rows of the table have no gradient, so that the average gradient is small.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2**14, 4)
        self.layer, self.norm, self.score = nn.Conv1d(4, 16, 3, padding=1), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.norm(self.layer(self.table(values).transpose(1, 2))))
        scores: torch.Tensor = self.score(hidden.transpose(1, 2)).squeeze(-1)
        return scores


def normalized() -> Case:
    def batch() -> dict[str, torch.Tensor]:
        values = torch.randint(2**14, (32, 24))
        return {"values": values, "target": values.argmax(-1)}

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(model(batch["values"]).float(), batch["target"])

    return Case("normalized", Normalized, batch, loss)


@pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
def test_gradient_that_is_zero_but_for_rounding_passes(precision: Precision) -> None:
    check(normalized(), precision=precision)


@pytest.mark.parametrize("name", ["layer.weight", "layer.bias", "score.weight", "score.bias"])
def test_garbage_in_the_gradient_of_one_parameter_is_red(name: str) -> None:
    """Double the gradient of a parameter, or set it to an average gradient where it is zero."""

    def train(iteration: TrainingIteration) -> None:
        def spoil() -> None:
            gradient: Any = iteration.model.get_parameter(name).grad
            gradient.mul_(2).add_(0.1 if name.endswith("bias") else 0.0)

        step_after(iteration, spoil if iteration.low else None)

    with pytest.raises(AmpFailure, match=rf"step 0: the gradient of {name} is not that of float32"):
        check(normalized(), train, steps=3)


class Attentive(nn.Module):
    """Model whose query and key reach the result times ``scale``, and so do their gradients."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.enter, self.leave, self.scale = nn.Linear(8, 8), nn.Linear(8, 4), scale
        self.query, self.key = nn.Linear(8, 32), nn.Linear(8, 32)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.enter(values))
        similar = (self.query(hidden) * self.key(hidden)).float().sum(-1, keepdim=True)
        result: torch.Tensor = self.leave(hidden) + (similar * self.scale).tanh()
        return result


def attentive(scale: float) -> Case:
    def batch() -> dict[str, torch.Tensor]:
        values = torch.randn(32, 8)
        return {"values": values, "target": values[:, :4].argmax(-1)}

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.mse_loss(model(batch["values"]).float(), batch["values"][:, :4])

    return Case("attentive", lambda: Attentive(scale), batch, loss)


def test_gradients_that_are_negligible_in_float32_may_be_zero() -> None:
    """Most gradients are some 1e-16 of the others: the range of fp16 does not have both."""
    check(attentive(1e-16), precision=FP16)


def test_gradients_that_the_dtype_flushes_at_its_largest_scale_may_be_zero() -> None:
    """The loss is so small that no scale helps: that is the model's own, and its large gradients are right."""
    case = attentive(1e-5)
    check(replace(case, loss=lambda model, batch: case.loss(model, batch) * 2.0**-20), precision=FP16, steps=3)


def test_gradients_that_matter_may_not_be_zero() -> None:
    """A hundred thousandth of the others is seen in float32, and lost in fp16 with a loss that is too small."""
    with pytest.raises(AmpFailure, match=r"step 0: \d+% of the gradients are exactly zero"):
        check(attentive(1e-5), lambda iteration: step_after(iteration, factor=2.0**-20), precision=FP16, steps=3)
