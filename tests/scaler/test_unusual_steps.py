"""Training steps that are wrong, or models that are right, in ways of which ``check_scaler`` sees one trace only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import Precision
from pytest_amp.scaler import Iteration
from tests.scaler.test_check_scaler import BOTH, backward, finish, run


def counts_a_clean_step_twice(iteration: Iteration) -> None:
    backward(iteration)
    finish(iteration)
    state = iteration.scaler.state_dict()
    iteration.scaler.load_state_dict({**state, "_growth_tracker": state["_growth_tracker"] + 1})


@BOTH
def test_a_count_of_clean_steps_that_is_changed_is_named(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="iteration 0: the scale does not follow the rule") as raised:
        run(counts_a_clean_step_twice, precision=precision)
    assert "growth tracker 2" in str(raised.value)


def zeroes_all_for_one_that_is_bad(iteration: Iteration) -> None:
    backward(iteration)
    gradients = [parameter.grad for parameter in iteration.model.parameters() if parameter.grad is not None]
    if not all(gradient.isfinite().all() for gradient in gradients):
        for gradient in gradients:
            gradient.zero_()
    finish(iteration)


@BOTH
def test_an_overflow_of_which_nothing_is_found_is_named_though_nothing_moves(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="iteration 2: an overflow is stepped with") as raised:
        run(zeroes_all_for_one_that_is_bad, precision=precision)
    assert "found inf: False, skipped: True" in str(raised.value)


class DeafSGD(torch.optim.SGD):
    """It says that it skips by itself, as fused optimizers do, and steps whatever was found."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        scale = float(getattr(self, "grad_scale", None) or 1.0)
        self.grad_scale = self.found_inf = None
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(scale).nan_to_num_(0.0, 0.0, 0.0)
        return super().step(closure)


@BOTH
def test_an_optimizer_that_does_not_ask_what_was_found_is_named(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="iteration 2: an overflow is stepped with") as raised:
        run(precision=precision, make_optimizer=lambda parameters: DeafSGD(parameters, lr=2.0**-10))
    assert "found inf: True, skipped: False" in str(raised.value)


def test_a_step_that_moves_nothing_is_named() -> None:
    with pytest.raises(AmpFailure, match="iteration 0: a step is skipped, or does nothing, without an overflow"):
        run(make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))


class Normalised(nn.Module):
    """It divides by the largest size that it has met: a buffer that the forward pass reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(x)
        largest = self.get_buffer("largest")
        largest.copy_(torch.maximum(largest, made.detach().float().abs().max()))
        return made / (1 + largest)


def test_each_iteration_is_judged_by_itself() -> None:
    """A buffer that an overflow has spoilt is read by the next forward pass, which would overflow from then on."""
    case = Case(
        "normalised",
        Normalised,
        lambda: torch.randn(6, 8),
        lambda model, batch: model(batch).float().square().mean(),
    )
    with pytest.raises(AmpFailure, match="an overflow is left in buffers: largest"):
        run(case=case)
    run(case=case, spoilt=["largest"])
