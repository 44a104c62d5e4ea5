"""Outcomes of an iteration with a scaler: steps that are skipped or taken, and the scale after its updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.parts import lines_that_read_gradients
from pytest_amp.scaler.reasons import likely_of_skip
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.stepping import SteppedOptimizers
from pytest_amp.scaler.trace import Training
from pytest_amp.scaler.watched import OptimizerStep, TraceStep, parameters_of

__tracebackhide__ = is_usage_error

#: Growth after three iterations without overflow, so that a short run includes one.
RULE = UpdateRule(growth_interval=3)


@dataclass
class Steps:
    """Steps of all iterations of a run, by optimizer.

    ``rule`` is that by which the scale changes, ``at`` are the iterations that step an optimizer, by its number,
    ``overflowed`` the numbers of those in whose gradients an overflow was planted, and ``moving`` the optimizers that
    have changed a parameter.
    """

    rule: UpdateRule = RULE
    known: SteppedOptimizers = field(default_factory=SteppedOptimizers)
    at: dict[int, list[int]] = field(default_factory=dict)
    overflowed: set[int] = field(default_factory=set)
    moving: set[torch.optim.Optimizer] = field(default_factory=set)

    def note(self, iteration: Iteration) -> None:
        """Add the steps of an iteration."""
        for number in dict.fromkeys(self.known.note(iteration.scaler)):
            self.at.setdefault(number, []).append(iteration.index)
        self.moving |= {step.optimizer for step in iteration.scaler.steps if step.moved}

    def without_overflow(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the number, and the iterations, of each of several optimizers that had no planted overflow."""
        if len(self.at) > 1:
            yield from ((number, indices) for number, indices in self.at.items() if number not in self.overflowed)


class NoLowOutput(AmpUsageError):
    """No module returns a tensor in the low dtype, in which an overflow could be planted."""


def check_outcome(training: Training, iteration: Iteration, step: TraceStep, steps: Steps) -> None:
    """Check that exactly the steps with an overflow among their gradients are skipped. Raises AmpFailure."""
    name, index = training.case.name, iteration.index
    steps.note(iteration)
    overflows = index in training.overflow_gradients_at
    if overflows and len(steps.at) > 1 and not _reaches_target(iteration):
        overflows = False  # an iteration of another optimizer
    elif overflows:  # the first step of its optimizer has to be skipped
        number = steps.known.number_of(iteration.targets)
        steps.overflowed |= set() if number is None else {number}
    if not iteration.planted and (overflows or index in training.overflow_activations_at):
        if overflows:
            raise AmpUsageError(
                f"case {name}: no overflow could be planted in iteration {index}: no gradient is accumulated"
            )
        low = training.precision.dtype_name
        raise NoLowOutput(f"case {name}: no module returns a tensor in {low}; expected overflow_activations_at=()")
    if index in training.overflow_activations_at:
        overflows = step.found_inf  # an activation may make it finite again
    if len(iteration.scaler.steps) > 1 or len(steps.at) > 1:
        _check_each(training, iteration, step, steps, overflows=overflows)
    elif step.found_inf != overflows or (step.skipped != overflows and not _begins_at_rate_zero(iteration)):
        raise _failure(training, iteration, step, is_stepped=overflows)


def _begins_at_rate_zero(iteration: Iteration) -> bool:
    """Return whether the first iteration steps with learning rates of zero only, as linear warm-up begins."""
    steps = iteration.scaler.steps
    return iteration.index == 0 and bool(steps) and not any(step.has_rate or step.found_inf for step in steps)


def _reaches_target(iteration: Iteration) -> bool:
    """Return whether the step of the optimizer in whose gradients an overflow is planted is taken, or left out."""
    is_left_out = not iteration.scaler.steps or (iteration.planted and iteration.scaler.found_inf)
    return is_left_out or _step_of_target(iteration) is not None


def _step_of_target(iteration: Iteration) -> OptimizerStep | None:
    """Return the first step of the optimizer in whose gradients an overflow is planted, None without one."""
    targets = {id(parameter) for parameter in iteration.targets}
    steps = iteration.scaler.steps
    return next((step for step in steps if {id(p) for p in parameters_of(step.optimizer)} == targets), None)


def _check_each(training: Training, iteration: Iteration, step: TraceStep, steps: Steps, *, overflows: bool) -> None:
    """Check each of several steps by what the scaler found in its own gradients. Raises AmpFailure."""
    calls = iteration.scaler.steps
    target = _step_of_target(iteration)
    if target is not None and any(iteration.scaler.rounds[: target.round]):
        target = None  # the training step has left out the step with the overflow itself
    despite = [call for call in calls if (call.found_inf and call.moved) or (call is target and not call.found_inf)]
    if despite or (overflows and not step.found_inf):
        raise _failure(training, iteration, step, is_stepped=True, call=despite[0] if despite else None)
    left = [
        call
        for index, call in enumerate(calls if step.found_inf else ())
        if not call.found_inf and not call.moved and call.has_gradients and call.optimizer in steps.moving
        if _moves_without_overflow(training, iteration, step, steps, index)
    ]
    is_idle = step.skipped and not overflows and not _begins_at_rate_zero(iteration)
    if left or step.found_inf != overflows or is_idle:
        raise _failure(training, iteration, step, is_stepped=False, call=left[0] if left else None)


def _moves_without_overflow(training: Training, iteration: Iteration, step: TraceStep, steps: Steps, call: int) -> bool:
    """Return whether the step with the number ``call`` changes a parameter if no overflow is planted."""
    clean = replace(training, overflow_gradients_at=(), overflow_activations_at=())
    *_, (again, _) = clean.iterations(iteration.index + 1, step.scale, steps.rule)
    return call < len(again.scaler.steps) and again.scaler.steps[call].moved


def _failure(
    training: Training, iteration: Iteration, step: TraceStep, *, is_stepped: bool, call: OptimizerStep | None = None
) -> AmpFailure:
    """Return the failure of a step that is taken with an overflow (``is_stepped``), or that is skipped without one."""
    found_inf, skipped = (step.found_inf, step.skipped) if call is None else (call.found_inf, not call.moved)
    which = "" if call is None else f", step {iteration.scaler.steps.index(call) + 1} of {len(iteration.scaler.steps)}"
    what = "a step is skipped, or does nothing, without an overflow"
    if is_stepped:
        what = "a step with an overflow is taken"
        likely = "gradients are repaired, replaced or zeroed before the scaler checks them"
    elif call is not None and step.found_inf:
        likely = "an overflow of one optimizer's gradients skips the step of another, whose gradients are finite"
    else:
        if step.found_inf:
            what = "a step is skipped, since it overflows although no overflow is planted in it"
        likely = likely_of_skip(training, iteration, step)
    return AmpFailure(
        f"{training.case.name}, iteration {iteration.index}: {what}",
        label_before="rule",
        before="a step with an inf or NaN among its gradients changes no parameter; every other step does",
        now=f"found inf: {found_inf}, skipped: {skipped}, scale {step.scale}{which}",
        site=_lines_of_outcome(training, iteration, is_stepped=is_stepped),
        likely=likely,
    )


def _lines_of_outcome(training: Training, iteration: Iteration, *, is_stepped: bool) -> str | None:
    """Return the lines that change gradients before the scaler reads them, or else the lines that step."""
    lines = lines_that_read_gradients(training) if is_stepped else []
    return ", ".join(lines or iteration.scaler.lines.get("step", [])) or None


def check_scale(training: Training, iteration: Iteration, step: TraceStep, rule: UpdateRule) -> None:
    """Check that each update of an iteration changes the scale by the rule. Raises AmpFailure."""
    expected = (step.scale, iteration.tracker_before)
    for found_inf in iteration.scaler.rounds:
        expected = rule.after(*expected, found_inf=found_inf)
    if (step.scale_after, step.growth_tracker) != expected:
        raise AmpFailure(
            f"{training.case.name}, iteration {iteration.index}: the scale does not follow the rule",
            label_before="rule",
            before=f"scale {expected[0]}, growth tracker {expected[1]}",
            now=f"scale {step.scale_after}, growth tracker {step.growth_tracker}",
            site=", ".join(iteration.scaler.lines.get("update", [])) or None,
            likely="update is given a scale, or the scaler is changed by other means",
        )
