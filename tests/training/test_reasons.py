"""Likely causes that check_training names are measurements, or the operator behind them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_amp.cases import Case, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.draws import Draws
from pytest_amp.precision import BF16, FP16
from pytest_amp.training import Setup
from pytest_amp.training.reasons import first_of, likely_forward, likely_sizes
from pytest_amp.training.trajectory import TrajectoryStep
from tests.training.test_check_training import run

SETUP = Setup(
    mlp(), find_device("cpu"), FP16, steps=2, make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)
)


def step(norm: float) -> TrajectoryStep:
    return TrajectoryStep(1.0, 0.0, 0.0, 0.0, norm, 0, alone=False, loss_dtype=torch.float32)


@pytest.mark.parametrize(
    ("ratio", "likely"),
    [
        (1.05, None),
        (50000.0, r"about the scale \(65536\): not unscaled"),
        (3.0, "accumulated without dividing"),
        (0.5, "clipped before scaler.unscale_, a part of the loss that is not scaled"),
        (1e30, "what the training step makes of them, or an operator that is wrong at times"),
        (float("nan"), "what the training step makes of them"),
    ],
)
def test_ratio_of_gradient_sizes_names_its_likely_cause(ratio: float, likely: str | None) -> None:
    actual = likely_sizes(SETUP, step(1.0), step(ratio), 65536.0)
    if likely is None:
        assert actual is None
    else:
        assert actual is not None
        assert re.search(likely, actual)
        assert ("clipped" in actual) == (ratio < 1)


def test_first_non_finite_loss_is_found() -> None:
    assert first_of([1.0, float("inf"), float("nan")]) == 1


def test_exponential_beyond_the_range_is_named() -> None:
    """The scale falls, and the loss stays infinite."""

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = model(batch["inputs"])
        return y.float().square().mean() + (y * 0 + 12).exp().float().log().mean()

    with pytest.raises(AmpFailure, match=r"step 0: skipped \d+ times in a row") as raised:
        run(case=replace(mlp(), loss=loss), precision=FP16)
    assert raised.match(r"likely +exp in the loss, forward pass, at \S+test_reasons\.py:\d+: overflow")


class Distillation(nn.Module):
    """Student beside a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).requires_grad_(requires_grad=False)
        self.student = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))


def distillation_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the divergence from the teacher, whose terms cancel: autocast computes both factors in a low dtype."""
    teacher, student = (child(batch["inputs"]) for child in model.children())
    logs, targets = functional.log_softmax(student / 8, -1), functional.softmax(teacher / 8, -1)
    return 64 * functional.kl_div(logs, targets, reduction="batchmean")


def test_later_loss_that_the_forward_pass_alone_moves_is_named() -> None:
    """The band is as wide as the first loss's error, which is in it."""
    case = replace(mlp(), build=Distillation, loss=distillation_loss)
    setup = Setup(case, find_device("cpu"), BF16, steps=4, make_optimizer=torch.optim.AdamW)
    for step in (0, 2):
        text = likely_forward(setup, step, Draws(), allowed=1e-3)
        assert text is not None
        assert re.match("the forward pass, not the updates: from the weights of float32, too, the loss of this", text)
        assert re.search(r"the noise jumps at sum in the loss, forward pass, at \S+test_reasons\.py:\d+", text)
    assert likely_forward(setup, 2, Draws(), allowed=10.0) is None


def test_overflow_that_develops_in_training_is_named() -> None:
    """Use a parameter that grows equally in each step, in both runs."""

    class Grows(nn.Module):
        """Model that returns ten to the power of its parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.power = nn.Linear(8, 4), nn.Parameter(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layer(x)
            return (
                y.float().square().mean() + torch.log((y * 0 + 1) * 10.0 ** self.power.to(y.dtype)).float().mean() * -1
            )

    case = Case("grows", Grows, lambda: torch.randn(6, 8), lambda model, batch: model(batch))
    with pytest.raises(AmpFailure, match=r"leaves the band of float32 at step [34] of|skipped") as raised:
        run(case=case, precision=FP16, steps=6, optimizer=lambda p: torch.optim.SGD(p, lr=0.6))
    assert raised.match(r"likely +(pow|mul) in the model \(Grows\), forward pass, at \S+test_reasons\.py:\d+: overflow")


def test_operator_behind_a_wrong_first_loss_is_named() -> None:
    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = model(batch["inputs"]) + 20
        return ((y * y).mean(-1) - y.mean(-1).square()).float().mean()

    with pytest.raises(AmpFailure, match="leaves the band of float32 at step 0") as raised:
        run(case=replace(mlp(), loss=loss), steps=4)
    assert raised.match(r"likely +the first loss, .*: the noise jumps at \w+ in the loss, forward pass")


def test_diverging_float32_training_names_its_operator() -> None:
    with pytest.raises(AmpFailure, match="the training does not stay finite in float32") as raised:
        run(optimizer=lambda p: torch.optim.SGD(p, lr=1e38), steps=4)
    assert raised.match(r"likely +there is nothing to compare .* in .* pass")
