"""The likely cause that check_scaler names is the operator that overflows, or that differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import Iteration, reasons, standard_step
from tests.scaler.test_check_scaler import clips_before_unscaling, finish, forward, run


def test_an_operator_that_differs_is_named_before_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "likely_operator", lambda *_: "gelu_backward in 1: is off by 300 times")
    with pytest.raises(AmpFailure, match="depend on the scale") as raised:
        run(clips_before_unscaling)
    assert raised.match("likely +gelu_backward in 1: is off by 300 times")


def enlarges_weights(iteration: Iteration) -> None:
    """What the second iteration computes is beyond fp16."""
    if iteration.index == 1:
        with torch.no_grad():
            next(iteration.model.parameters()).mul_(1e7)
    standard_step(iteration)


def test_a_skipped_step_names_the_operator_that_overflows() -> None:
    with pytest.raises(
        AmpFailure, match="iteration 1: a step is skipped, or does nothing, without an overflow"
    ) as raised:
        run(enlarges_weights)
    assert raised.match(r"likely +cast in \S+ \(Linear\), forward pass.*: overflow: up to")


def ignores_the_loss(iteration: Iteration) -> None:
    """Gradients of zeros: nothing overflows, and nothing moves."""
    finish_with: Any = iteration.scaler.scale(forward(iteration) * 0)
    finish_with.backward()
    finish(iteration)


def test_a_step_that_moves_nothing_is_not_told_of_an_overflow() -> None:
    with pytest.raises(AmpFailure, match="a step is skipped, or does nothing, without an overflow") as raised:
        run(ignores_the_loss)
    assert raised.match("likely +the loss reaches no parameter, its gradient is zero")
