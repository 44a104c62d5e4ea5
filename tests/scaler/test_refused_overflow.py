"""Models that raise at non-finite values: the rest of the check continues, and a note reports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import Precision
from pytest_amp.scaler import Iteration, standard_step
from tests.observing import Noted
from tests.scaler.checked import BOTH, checked

Refuse = Callable[[torch.Tensor], object]


def by_value_error(values: torch.Tensor) -> None:
    if not values.isfinite().all():
        raise ValueError("boxes must be finite")


def by_assertion(values: torch.Tensor) -> None:
    assert values.isfinite().all(), "boxes must be finite"


def by_a_distribution(values: torch.Tensor) -> None:
    """Raise by torch.distributions, which checks its arguments.

    Dynamo turns these checks off for the whole process at its first compilation (``TorchPatcher.patch``), and an
    earlier test of the same worker may have compiled.
    """
    torch.distributions.Normal(values.float().softmax(-1), 1.0, validate_args=True)


def by_no_number(values: torch.Tensor) -> None:
    """Raise torch's IndexError, for an index computed from a non-finite value."""
    torch.arange(4)[9 * int((~values.isfinite()).any())]


def case(refuse: Refuse, layer: Callable[[], nn.Module] = nn.Identity) -> Case:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        boxes = model(batch)
        refuse(boxes)
        return boxes.float().square().mean()  # type: ignore[no-any-return]

    return Case("refusing", lambda: nn.Sequential(nn.Linear(8, 4), layer()), lambda: torch.randn(4, 8), loss)


def run(case: Case, noted: Noted | None = None, **options: Any) -> list[str]:
    """Return the iterations that were skipped."""
    return [str(index) for index, step in enumerate(checked(case, noted, **options)) if step.skipped]


@BOTH
@pytest.mark.parametrize("refuse", [by_value_error, by_assertion, by_a_distribution, by_no_number])
def test_check_continues_after_a_refused_overflow(precision: Precision, refuse: Refuse) -> None:
    noted = Noted()
    assert run(case(refuse), noted, precision=precision) == ["2"]
    (note,) = noted.notes
    assert "refusing: the training step raises at the inf that was planted in its forward pass (" in note
    assert "test_refused_overflow.py:" in note or refuse is by_a_distribution
    assert "overflow_activations_at=() says that this is known" in note
    assert noted["refusing/refused overflows"] == ["6 (0)"]
    assert noted["refusing/skipped"] == ["2"]


def leaves_nonfinite_losses_out(iteration: Iteration) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss: Any = iteration.loss()
    if not torch.isfinite(loss):
        return
    iteration.scaler.scale(loss).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@BOTH
def test_check_continues_after_a_step_that_leaves_out_an_overflow(precision: Precision) -> None:
    noted = Noted()
    assert run(case(lambda _: None), noted, precision=precision, train=leaves_nonfinite_losses_out) == ["2"]
    (note,) = noted.notes
    assert "the training step leaves out the batch at the inf that was planted in its forward pass" in note
    assert noted["refusing/refused overflows"] == ["6 (0)"]


def test_step_that_is_left_out_without_an_overflow_fails() -> None:
    def leaves_one_out(iteration: Iteration) -> None:
        if iteration.index != 4:
            standard_step(iteration)

    with pytest.raises(AmpFailure, match=r"iteration 4: the training step calls scaler\.step 0 times"):
        run(case(lambda _: None), train=leaves_one_out)


def test_check_reports_wrong_steps_after_a_refused_overflow() -> None:
    def clips_before_unscaling(iteration: Iteration) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            loss = iteration.loss()
        iteration.scaler.scale(loss).backward()  # type: ignore[no-untyped-call,unused-ignore]
        nn.utils.clip_grad_norm_(iteration.model.parameters(), 1.0)
        iteration.scaler.step(iteration.optimizer)
        iteration.scaler.update()

    with pytest.raises(AmpFailure, match="depend on the scale"):
        run(case(by_value_error), train=clips_before_unscaling)


def test_buffer_names_are_accepted_after_a_refused_overflow() -> None:
    noted = Noted()
    run(case(by_value_error, lambda: nn.BatchNorm1d(4)), noted, nonfinite_buffers=["*.running_mean"])
    assert noted["refusing/spoilt buffers"] == []


def test_error_without_an_overflow_is_raised() -> None:
    def fails(iteration: Iteration) -> None:
        if iteration.index == 4:
            raise ValueError("of the project")
        standard_step(iteration)

    with pytest.raises(ValueError, match=r"^of the project$"):
        run(case(lambda _: None), train=fails)


@BOTH
def test_step_that_raises_at_an_inf_gradient_fails(precision: Precision) -> None:
    """Fail, since the scaler would skip such an overflow, which is usual in the first steps of a training."""

    def clips_finite_gradients_only(iteration: Iteration) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            loss = iteration.loss()
        iteration.scaler.scale(loss).backward()  # type: ignore[no-untyped-call,unused-ignore]
        iteration.scaler.unscale_(iteration.optimizer)
        nn.utils.clip_grad_norm_(iteration.model.parameters(), 1e3, error_if_nonfinite=True)
        iteration.scaler.step(iteration.optimizer)
        iteration.scaler.update()

    with pytest.raises(AmpFailure, match="iteration 2: the training step raises at an inf in a gradient") as raised:
        run(case(lambda _: None), precision=precision, train=clips_finite_gradients_only)
    assert "RuntimeError (test_refused_overflow.py:" in str(raised.value)
    assert "error_if_nonfinite=True" in str(raised.value)
