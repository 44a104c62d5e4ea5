"""Wrong training steps with a single symptom, and correct ones that look unusual, for check_scaler."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import FP16, Precision
from pytest_amp.scaler import Iteration, Train, Training, check_scaler
from tests.observing import unheeded
from tests.scaler.checked import BOTH
from tests.scaler.test_check_scaler import backward, finish, run


def counts_a_clean_step_twice(iteration: Iteration) -> None:
    backward(iteration)
    finish(iteration)
    state = iteration.scaler.state_dict()
    iteration.scaler.load_state_dict({**state, "_growth_tracker": state["_growth_tracker"] + 1})


@BOTH
def test_changed_growth_tracker_is_reported(precision: Precision) -> None:
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
def test_undetected_overflow_is_reported_without_a_change_of_weights(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="iteration 2: a step with an overflow is taken") as raised:
        run(zeroes_all_for_one_that_is_bad, precision=precision)
    assert "found inf: False, skipped: True" in str(raised.value)


class DeafSGD(torch.optim.SGD):
    """Optimizer that claims to skip overflows itself, as fused ones do, and never skips."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        scale = float(getattr(self, "grad_scale", None) or 1.0)
        self.grad_scale = self.found_inf = None
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(scale).nan_to_num_(0.0, 0.0, 0.0)
        return super().step(closure)


@BOTH
def test_optimizer_that_ignores_found_inf_is_reported(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match="iteration 2: a step with an overflow is taken") as raised:
        run(precision=precision, make_optimizer=lambda parameters: DeafSGD(parameters, lr=2.0**-10))
    assert "found inf: True, skipped: False" in str(raised.value)


def test_step_that_changes_no_weight_is_reported() -> None:
    with pytest.raises(AmpFailure, match="iteration 1: a step is skipped, or does nothing, without an overflow"):
        run(make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))


def assigns_its_gradients(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    parameters = list(iteration.model.parameters())
    gradients = torch.autograd.grad(iteration.scaler.scale(loss), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    finish(iteration)


def leaves_out_a_step(iteration: Iteration) -> None:
    """Skip by the norm of the unscaled gradients, as GradScaler would."""
    backward(iteration)
    iteration.scaler.unscale_(iteration.optimizer)
    norm = nn.utils.clip_grad_norm_(iteration.model.parameters(), 1e3)
    if norm.isfinite():
        iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@BOTH
@pytest.mark.parametrize("step", [assigns_its_gradients, leaves_out_a_step])
def test_overflow_is_skipped_in_a_step_with_its_own_autograd_calls(step: Train, precision: Precision) -> None:
    trace = run(step, precision=precision)
    assert [index for index, traced in enumerate(trace) if traced.found_inf] == [
        index for index, traced in enumerate(trace) if traced.skipped
    ]
    assert any(traced.found_inf for traced in trace)


def steps_only_sometimes(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.unscale_(iteration.optimizer)
    if iteration.index:
        iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@BOTH
def test_omitted_step_without_an_overflow_is_reported(precision: Precision) -> None:
    with pytest.raises(AmpFailure, match=r"iteration 0: the training step calls scaler\.step 0 times"):
        run(steps_only_sometimes, precision=precision)


def penalises_scaled_gradients(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    parameters = list(iteration.model.parameters())
    gradients = torch.autograd.grad(iteration.scaler.scale(loss), parameters, create_graph=True)
    penalty = torch.stack([gradient.float().square().sum() for gradient in gradients]).sum().sqrt()
    iteration.scaler.scale(loss + 0.1 * penalty).backward()
    finish(iteration)


def test_scaled_gradient_penalty_is_reported_with_its_line() -> None:
    with pytest.raises(AmpFailure, match="depend on the scale") as raised:
        run(penalises_scaled_gradients)
    line = penalises_scaled_gradients.__code__.co_firstlineno + 5
    assert f"test_unusual_steps.py:{line}" in str(raised.value)


class Normalised(nn.Module):
    """Model that divides by the largest size so far: a buffer that the forward pass reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        largest = self.get_buffer("largest")
        largest.copy_(torch.maximum(largest, result.detach().float().abs().max()))
        return result / (1 + largest)


def test_overflowed_buffer_does_not_affect_later_iterations() -> None:
    """Restore a buffer that an overflow has overwritten, since every later forward pass would overflow, too."""
    case = Case(
        "normalised",
        Normalised,
        lambda: torch.randn(6, 8),
        lambda model, batch: model(batch).float().square().mean(),
    )
    with pytest.raises(AmpFailure, match="an overflow is left in buffers: largest"):
        run(case=case)
    run(case=case, nonfinite_buffers=["largest"])


def updates_twice(iteration: Iteration) -> None:
    backward(iteration)
    finish(iteration)
    iteration.scaler.update(iteration.scaler.get_scale())


def steps_with_two_optimizers(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.step(torch.optim.SGD(iteration.model.parameters(), lr=0.0))
    finish(iteration)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (updates_twice, "iteration 0: the training step calls scaler.update 2 times"),
        (steps_with_two_optimizers, "4 parameters belong to two optimizers"),
    ],
)
def test_repeated_call_without_an_effect_is_reported(train: Train, words: str) -> None:
    with pytest.raises(AmpFailure, match=words):
        run(train)


def test_small_addition_to_scaled_gradients_is_reported() -> None:
    """Add weight decay before ``unscale_``: gradients at the two scales then differ by half of their size."""
    decay = 0.0

    def decays(iteration: Iteration) -> None:
        nonlocal decay
        backward(iteration)
        weights = [parameter.detach() for parameter in iteration.model.parameters()]
        gradients = [parameter.grad for parameter in iteration.model.parameters() if parameter.grad is not None]
        ratio = float(nn.utils.get_total_norm(gradients) / nn.utils.get_total_norm(weights))
        decay = decay or (0.06 * ratio if math.isfinite(ratio) else 0.0)
        for weight, gradient in zip(weights, gradients, strict=True):
            gradient.add_(weight, alpha=decay)
        finish(iteration)

    with pytest.raises(AmpFailure, match="the gradients that the optimizer sees depend on the scale") as raised:
        run(decays)
    assert re.search(r"relative distance \d", str(raised.value))


def test_scale_is_chosen_with_room_to_grow() -> None:
    """Use a loss of three times the scale, which is finite in fp16 at 2^14 and not at 2^15."""
    case = Case("three", lambda: nn.Linear(4, 1), lambda: torch.full((1, 4), 0.1), lambda m, x: 3 * m(x).float().sum())
    training = Training(case, find_device("cpu"), FP16, overflow_gradients_at=(8,))
    traced = check_scaler(training, unheeded, nonfinite_buffers=(), note=unheeded)
    assert [index for index, step in enumerate(traced) if step.skipped] == [8]
    assert max(step.scale for step in traced) == 2.0**13


def test_nonfinite_gradients_are_not_reported_as_accumulated() -> None:
    """Overflow in the second iteration, in which check_scaler looks for accumulated gradients."""
    traced = run(overflow_activations_at=(1,))
    assert [step.skipped for step in traced[:3]] == [False, True, True]


def test_overflow_is_not_planted_in_an_empty_parameter() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nothing, self.layer = nn.Parameter(torch.empty(0, 4)), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x) + self.nothing.sum()

    case = Case("empty", Model, lambda: torch.randn(8, 4), lambda model, x: model(x).float().square().mean())
    assert [step.skipped for step in run(case=case)].count(True) >= 1
