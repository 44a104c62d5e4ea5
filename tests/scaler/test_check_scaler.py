"""check_scaler accepts a correct training step, and reports the error of a wrong one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, cnn, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.scaler import (
    Iteration,
    SwallowedOverflow,
    TraceStep,
    Train,
    Training,
    check_scaler,
    plain_sgd,
    standard_step,
)
from tests.observing import Noted, unheeded
from tests.scaler.checked import BOTH, checked


def unbounded() -> Case:
    """Return a case without tanh, which would make an inf finite."""
    return Case(
        "unbounded",
        lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)),
        lambda: torch.randn(4, 8),
        lambda model, batch: model(batch).float().square().mean(),
    )


def run(train: Train = standard_step, *, case: Case | None = None, **options: Any) -> tuple[TraceStep, ...]:
    return checked(case or unbounded(), train=train, **options)


def forward(iteration: Iteration) -> torch.Tensor:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        return iteration.loss()


def backward(iteration: Iteration) -> None:
    scaled: Any = iteration.scaler.scale(forward(iteration))
    scaled.backward()


def finish(iteration: Iteration, loss: torch.Tensor | None = None) -> None:
    """Step and update, after a backward pass from ``loss`` if there is one."""
    if loss is not None:
        scaled: Any = iteration.scaler.scale(loss)
        scaled.backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def clipped(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.unscale_(iteration.optimizer)
    nn.utils.clip_grad_norm_(iteration.model.parameters(), 0.1)
    finish(iteration)


def clips_before_unscaling(iteration: Iteration) -> None:
    backward(iteration)
    nn.utils.clip_grad_norm_(iteration.model.parameters(), 0.1)
    finish(iteration)


def steps_itself(iteration: Iteration) -> None:
    backward(iteration)
    iteration.optimizer.step()
    iteration.scaler.update(iteration.scaler.get_scale())


def unscales_and_steps_itself(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.unscale_(iteration.optimizer)
    iteration.optimizer.step()
    iteration.scaler.update()


def forgets_update(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.step(iteration.optimizer)


def forgets_update_after_skipping(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.step(iteration.optimizer)
    if iteration.scaler.moved:
        iteration.scaler.update()


def forgets_to_scale(iteration: Iteration) -> None:
    unscaled: Any = forward(iteration)
    unscaled.backward()
    finish(iteration)


def repairs_gradients(iteration: Iteration) -> None:
    backward(iteration)
    for parameter in iteration.model.parameters():
        assert parameter.grad is not None
        parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
    finish(iteration)


def unscales_twice(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.unscale_(iteration.optimizer)
    iteration.scaler.unscale_(iteration.optimizer)
    finish(iteration)


def divides_by_hand(iteration: Iteration) -> None:
    backward(iteration)
    for parameter in iteration.model.parameters():
        assert parameter.grad is not None
        parameter.grad /= iteration.scaler.get_scale()
    finish(iteration)


def forgets_the_region(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    finish(iteration, iteration.loss())


def closes_the_region_too_early(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        model, batch = iteration.model, iteration.batch
    finish(iteration, model(batch).float().square().mean())


def has_another_region(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    other = torch.float16 if iteration.precision.dtype is torch.bfloat16 else torch.bfloat16
    with torch.autocast("cpu", other):
        loss = iteration.loss()
    finish(iteration, loss)


def forgets_zero_grad(iteration: Iteration) -> None:
    with iteration.autocast():
        loss = iteration.loss()
    finish(iteration, loss)


def steps_two_optimizers(iteration: Iteration) -> None:
    other = plain_sgd(list(iteration.model.parameters())[:2])
    backward(iteration)
    iteration.scaler.step(other)
    finish(iteration)


def zeroes_some_gradients(iteration: Iteration) -> None:
    if iteration.index:
        next(iter(iteration.model.parameters())).grad = None
    forgets_zero_grad(iteration)


def zeroes_at_the_end(iteration: Iteration) -> None:
    forgets_zero_grad(iteration)
    iteration.optimizer.zero_grad(set_to_none=False)


def goes_back_inside_the_region(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        scaled: Any = iteration.scaler.scale(iteration.loss())
        scaled.backward()
    finish(iteration)


def goes_back_inside_without_the_loss(iteration: Iteration) -> None:
    """Run backward inside the region on a loss of the step's own."""
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.model(iteration.batch).float().square().mean()
        scaled: Any = iteration.scaler.scale(loss)
        scaled.backward()
    finish(iteration)


def accumulates(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    for _ in range(2):
        with iteration.autocast():
            loss = iteration.loss() / 2
        scaled: Any = iteration.scaler.scale(loss)
        scaled.backward()
    finish(iteration)


def sets_the_scale(iteration: Iteration) -> None:
    backward(iteration)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update(64.0)


@BOTH
@pytest.mark.parametrize("train", [standard_step, clipped, zeroes_at_the_end, accumulates])
def test_correct_step_passes(precision: Precision, train: Train) -> None:
    observed = Noted()
    traced = run(train, precision=precision, noted=observed)
    assert [step.skipped for step in traced] == [False, False, True, False, False, False, True, False, False, False]
    assert [step.found_inf for step in traced] == [step.skipped for step in traced]
    start = traced[0].scale
    relative = [step.scale_after / start for step in traced]
    assert relative == [1, 1, 0.5, 0.5, 0.5, 1, 0.5, 0.5, 0.5, 1]
    scales = observed.pop("unbounded/scale")
    assert [float(scale) for scale in scales] == [step.scale for step in traced]
    assert observed.pop("unbounded/skipped") == ["2", "6"]
    assert observed.pop("unbounded/refused overflows") == []
    assert observed == {"unbounded/spoilt buffers": [], "unbounded/swallowed overflows": []}
    assert not observed.notes


def test_optimizer_of_some_parameters_passes() -> None:
    """Plant the overflow in a gradient that the optimizer reads, although backward computes the last layer's first."""
    traced = run(make_optimizer=lambda parameters: torch.optim.SGD(parameters[:2], lr=2.0**-10))
    assert [index for index, step in enumerate(traced) if step.skipped] == [2, 6]


def test_overflow_that_an_activation_makes_finite_warns() -> None:
    observed = Noted()
    with pytest.warns(
        SwallowedOverflow, match=r"reached no gradient in iteration 6 \(0\).*overflow_activations_at=\(\)"
    ):
        traced = run(case=mlp(width=16, batch=4), noted=observed)
    assert [i for i, step in enumerate(traced) if step.skipped] == [2]
    assert observed["mlp/swallowed overflows"] == ["6 (0)"]
    observed = Noted()
    run(case=mlp(width=16, batch=4), overflow_activations_at=(), noted=observed)
    assert observed["mlp/swallowed overflows"] == []


@BOTH
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("fused", [False, True], ids=["loop", "fused"])
def test_optimizers_pass_and_clipping_before_unscaling_fails(precision: Precision, name: str, *, fused: bool) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        result: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=2.0**-10, fused=fused)
        return result

    run(clipped, precision=precision, make_optimizer=make)
    with pytest.raises(AmpFailure, match="depend on the scale"):
        run(clips_before_unscaling, precision=precision, make_optimizer=make)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (clips_before_unscaling, "the gradients that the optimizer sees depend on the scale"),
        (steps_itself, "iteration 0: the training step calls the optimizer's own step, past the scaler"),
        (unscales_and_steps_itself, "iteration 0: the training step calls the optimizer's own step, past the scaler"),
        (forgets_update, "iteration 0: the training step calls scaler.update 0 times"),
        (forgets_update_after_skipping, "iteration 2: the training step calls scaler.update 0 times"),
        (steps_two_optimizers, "2 parameters belong to two optimizers: 0.bias, 0.weight"),
        (forgets_to_scale, "iteration 0: the loss is not scaled, and GradScaler refuses to unscale its gradients"),
        (repairs_gradients, "iteration 2: a step with an overflow is taken"),
        (unscales_twice, "unscale_() has already been called on this optimizer since the last update()"),
        (divides_by_hand, "the gradients that the optimizer sees depend on the scale"),
        (sets_the_scale, "iteration 0: the scale does not follow the rule"),
        (forgets_the_region, "autocast is never on"),
        (closes_the_region_too_early, "the training step computes nothing under autocast("),
        (has_another_region, "float16 only"),
        (forgets_zero_grad, "iteration 1: gradients are added to those of the iteration before"),
        (goes_back_inside_the_region, "backward runs inside the region; it belongs outside"),
        (goes_back_inside_without_the_loss, "backward runs inside the region; it belongs outside"),
        (zeroes_some_gradients, "now       0.bias, 2.bias, 2.weight"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@BOTH
def test_wrong_step_is_reported(precision: Precision, train: Train, words: str) -> None:
    with pytest.raises(AmpFailure) as raised:
        run(train, precision=precision)
    assert words in str(raised.value)


def test_network_with_statistics_passes_without_planted_activations() -> None:
    assert any(step.skipped for step in run(case=cnn(), overflow_activations_at=()))


def test_scale_too_high_for_the_case_is_lowered() -> None:
    large = Case(
        "large",
        lambda: nn.Linear(8, 4),
        lambda: torch.randn(6, 8),
        lambda model, batch: (model(batch).float() * 1e4).square().sum(),
    )
    traced = run(case=large, make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=2.0**-40))
    assert traced[0].scale < 1.0
    assert [i for i, step in enumerate(traced) if step.skipped] == [2, 6]


def test_case_that_overflows_at_any_scale_fails() -> None:
    infinite = Case(
        "infinite",
        lambda: nn.Linear(2, 2),
        lambda: torch.ones(1, 2),
        lambda model, batch: (model(batch).float() * 1e38).exp().sum(),
    )
    with pytest.raises(AmpFailure, match="not finite at any scale") as raised:
        run(case=infinite)
    assert raised.match(r"now +exp in the loss, forward pass, at \S+test_check_scaler\.py:\d+: overflow")


class _Regions(nn.Module):
    """Model with a region of its own, around functions and no module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return batch @ self.weight.T


def test_region_within_the_model_is_accepted() -> None:
    inner = Case("inner", _Regions, lambda: torch.randn(3, 8), lambda m, batch: m(batch).float().square().mean())
    run(forgets_the_region, case=inner, precision=BF16, overflow_activations_at=())
    with pytest.raises(AmpFailure, match="autocast is on in bfloat16 only"):
        run(forgets_the_region, case=inner, precision=FP16, overflow_activations_at=())


def test_impossible_iterations_are_refused() -> None:
    with pytest.raises(AmpUsageError, match="one at least, none before 1"):
        check_scaler(Training(mlp(), find_device("cpu"), BF16), unheeded, nonfinite_buffers=(), note=unheeded)
    with pytest.raises(AmpUsageError, match="no parameter that requires a gradient"):
        run(case=Case("frozen", nn.Identity, lambda: torch.ones(2), lambda model, batch: model(batch).sum()))


def test_model_without_low_tensors_is_refused() -> None:
    wide = Case("wide", lambda: nn.LayerNorm(4), lambda: torch.randn(3, 4), lambda m, b: m(b).square().sum())
    with pytest.raises(
        AmpUsageError, match=r"no module returns a tensor in float16; expected overflow_activations_at=\(\)"
    ):
        run(case=wide)
    run(case=wide, overflow_activations_at=())
