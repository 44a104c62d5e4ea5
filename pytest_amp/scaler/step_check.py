"""Check of a user's training step with a scaler: ``Amp.check_scaler``."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import torch

from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.record import Observe
from pytest_amp.scaler.buffers import check_buffers, expect_buffers, take_nonfinite
from pytest_amp.scaler.calls import check_calls, check_stale
from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.outcomes import RULE, NoLowOutput, Steps, check_outcome, check_scale
from pytest_amp.scaler.parts import check_parts, distance_of
from pytest_amp.scaler.reasons import at_any_scale, likely_of_difference, of_underflow
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.refusal import refused
from pytest_amp.scaler.regions import check_region
from pytest_amp.scaler.trace import RefusedOverflow, Training
from pytest_amp.scaler.watched import ScalerTrace, TraceStep

__tracebackhide__ = is_usage_error

#: Factor by which the scale of the second run is smaller, and the tolerated relative distance of its gradients. A
#: gradient that was not divided by the scale, or was clipped before, differs by about the factor; a correct one differs
#: by the rounding of subnormal numbers.
_OTHER_SCALE, _DISTANCE = 8.0, 0.25


class SwallowedOverflow(UserWarning):
    """Warning that an overflow planted in the forward pass reached no gradient, and its step was taken."""


class LowLoss(UserWarning):
    """Warning that the scaled loss is float16: multiplied by GradScaler's initial scale it overflows."""


@dataclass
class _Seen:
    """Results of the iterations of one run. ``nonfinite`` maps a buffer's name to the iterations that spoilt it."""

    traced: list[TraceStep] = field(default_factory=list)
    nonfinite: dict[str, list[int]] = field(default_factory=dict)
    swallowed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)
    low_loss: bool = False


def check_scaler(
    training: Training,
    observe: Observe,
    *,
    nonfinite_buffers: Collection[str],
    note: Callable[[str], object],
    activations_required: bool = True,
) -> tuple[TraceStep, ...]:
    """Run the training step with planted overflow. Raises AmpFailure; see ``Amp.check_scaler``.

    ``note`` receives a line about known behaviour that is not a failure. If no module returns a tensor in which an
    overflow can be planted, NoLowOutput is raised, or, without ``activations_required``, noted.
    """
    if (
        not training.overflow_gradients_at
        or min({*training.overflow_gradients_at, *training.overflow_activations_at}) < 1
    ):
        raise AmpUsageError(
            "overflow_gradients_at names the iterations in which to plant overflow: one at least, none before 1"
        )
    try:
        scale, observed = _run(training, nonfinite_buffers)
    except (NoLowOutput, RefusedOverflow) as reason:
        if isinstance(reason, NoLowOutput) and activations_required:
            raise
        training = replace(training, overflow_activations_at=())
        scale, observed = _run(training, nonfinite_buffers)
        if isinstance(reason, RefusedOverflow):
            observed.refused.append(reason.place)
        note(f"{training.case.name}: {_left_out(training, reason)}; overflow_activations_at=() says that this is known")
    name = training.case.name
    for line in _plant_in_the_rest(training, scale, observed.steps):
        note(f"{name}: {line}")
    known = check_buffers(
        training,
        observed.nonfinite,
        nonfinite_buffers,
        run=lambda: _first(_clean(training), scale)[0],
        whole=not observed.refused,
    )
    observe(f"{name}/skipped", [str(index) for index, step in enumerate(observed.traced) if step.skipped], kind="state")
    observe(f"{name}/spoilt buffers", [*observed.nonfinite], kind="state")
    observe(f"{name}/swallowed overflows", [*observed.swallowed], kind="state")
    observe(f"{name}/refused overflows", [*observed.refused], kind="state")
    observe(f"{name}/scale", [str(step.scale) for step in observed.traced], kind="state")
    if known is not None:
        note(known)
    if observed.low_loss:
        warnings.warn(_low_loss(training), stacklevel=4)
    if observed.swallowed:
        warnings.warn(_swallowed(training, observed.swallowed), stacklevel=4)
    return ScalerTrace(observed.traced)


class _OwnOverflow(Exception):
    """Overflow in an iteration in which none was planted, for example because of its random numbers."""


#: Factor by which the scale is reduced, and the maximum number of runs, if an iteration without a planted overflow
#: overflows.
_LESS, _RUNS = 2.0**-4, 3


def _run(training: Training, nonfinite_buffers: Collection[str]) -> tuple[float, _Seen]:
    """Return the first scale, and the results of the iterations. Raises AmpFailure, and RefusedOverflow."""
    bad = {*training.overflow_gradients_at, *training.overflow_activations_at}
    steps = max(bad) + 1 + RULE.growth_interval
    scale, updates = _largest_scale(training)
    rule = replace(RULE, growth_interval=RULE.growth_interval * updates)
    scale /= _peak(bad, steps, rule, updates)
    for _ in range(_RUNS - 1):
        with contextlib.suppress(_OwnOverflow):
            return scale, _run_iterations(training, nonfinite_buffers, steps, scale, rule, again=True)
        scale *= _LESS
    return scale, _run_iterations(training, nonfinite_buffers, steps, scale, rule, again=False)


def _run_iterations(  # noqa: PLR0913  # arguments of one run
    training: Training, nonfinite_buffers: Collection[str], steps: int, scale: float, rule: UpdateRule, *, again: bool
) -> _Seen:
    """Run the iterations and return their results. Raises _OwnOverflow if another run may follow (``again``)."""
    bad, observed = {*training.overflow_gradients_at, *training.overflow_activations_at}, _Seen(steps=Steps(rule))
    first, compared_at = None, 0
    for iteration, step in _guarded(training, steps, scale, rule):
        if again and iteration.index and step.found_inf and iteration.index not in bad:
            raise _OwnOverflow
        check_calls(training.case.name, training.train, iteration)
        if iteration.index == 0:
            expect_buffers(training, iteration.model, nonfinite_buffers)
            check_region(iteration, again=lambda: _first(_clean(training), scale))
            observed.low_loss = torch.float16 in iteration.scaler.scaled
        check_stale(training.case.name, training.train, iteration)
        if iteration.index == 0:
            first = iteration if iteration.gradients_by_step and not step.found_inf else None
            # Gradients of one step that are added to those of another, which iteration 1 shows, depend on the scale.
            compared_at = int(len(iteration.scaler.steps) > 1)
        if first is not None and iteration.index == compared_at:
            check_parts(training)
            _check_gradients(training, first, scale)
        check_outcome(training, iteration, step, observed.steps)
        check_scale(training, iteration, step, rule)
        for name in take_nonfinite(iteration.model):
            observed.nonfinite.setdefault(name, []).append(iteration.index)
        observed.traced.append(step)
        if iteration.index in training.overflow_activations_at and not step.found_inf:
            observed.swallowed.append(f"{iteration.index} ({iteration.planted_in})")
    return observed


def _plant_in_the_rest(training: Training, scale: float, steps: Steps) -> Iterator[str]:
    """Check a run for each optimizer whose gradients had no overflow yet. Yields a line for each that has none.

    Raises AmpFailure.
    """
    for number, indices in steps.without_overflow():
        first = min(training.overflow_gradients_at)
        later = indices[1:]  # in its first step nothing tells an optimizer from others
        at = min((index for index in later if index >= first), default=max(later, default=0))
        name = f"optimizer {number + 1} of {len(steps.known.groups)}, in the order of their first steps,"
        if not at:
            yield f"{name} steps in iteration {indices[0]} only; no overflow was planted in its gradients"
            continue
        planted = replace(training, overflow_gradients_at=(at,), overflow_activations_at=(), target=number)
        again = Steps(steps.rule)
        for iteration, step in _guarded(planted, at + 1, scale / _peak({at}, at + 1), steps.rule):
            check_outcome(planted, iteration, step, again)
            check_scale(planted, iteration, step, steps.rule)
            take_nonfinite(iteration.model)
        if number not in again.overflowed:
            yield f"{name} takes no step in iteration {at} of another run; no overflow was planted in its gradients"


def _left_out(training: Training, reason: NoLowOutput | RefusedOverflow) -> str:
    if isinstance(reason, NoLowOutput):
        low = training.precision.dtype_name
        return f"no module returns a tensor in {low}, and overflow in the forward pass is left out"
    return (
        f"the training step {reason.what} at the inf that was planted in its forward pass ({reason}), and overflow "
        "there is left out"
    )


def _swallowed(training: Training, where: list[str]) -> SwallowedOverflow:
    return SwallowedOverflow(
        f"{training.case.name}: an inf in what a module returns reached no gradient in iteration {', '.join(where)}: "
        "an activation that saturates, clamp or nan_to_num made it finite. The step was taken, and nothing was seen of "
        "an overflow in the forward pass; overflow_activations_at=() says that this is known"
    )


def _low_loss(training: Training) -> LowLoss:
    return LowLoss(
        f"{training.case.name}: the loss that is scaled is float16. By 65536, where GradScaler begins, its gradient is "
        "inf: steps are skipped until the scale is lower, and one more whenever it grows back; and the loss itself has "
        "three digits, and ends at 65504. Compute it in float32: output.float() before the loss"
    )


def _clean(training: Training) -> Training:
    return replace(training, overflow_gradients_at=(), overflow_activations_at=())


def _peak(bad: Collection[int], steps: int, rule: UpdateRule = RULE, updates: int = 1) -> float:
    """Return the factor by which the scale can grow, in a run with overflow in the iterations ``bad``."""
    state, peak = (1.0, 0), 1.0
    for index in range(steps):
        for update in range(updates):
            state = rule.after(*state, found_inf=index in bad and not update)
            peak = max(peak, state[0])
    return peak


def _largest_scale(training: Training) -> tuple[float, int]:
    """Return half of the largest scale up to 65536 at which the first iteration does not overflow by itself.

    The second value is the number of its updates.
    """
    for exponent in range(16, -25, -2):
        iteration, step = _first(_clean(training), 2.0**exponent)
        if not step.found_inf:
            return 2.0 ** (exponent - 1), max(1, len(iteration.scaler.rounds))
    raise at_any_scale(training)


def _first(training: Training, scale: float) -> tuple[Iteration, TraceStep]:
    """Run one iteration on a fresh model and return it."""
    (result,) = _guarded(training, 1, scale)
    return result


def _guarded(
    training: Training, steps: int, scale: float, rule: UpdateRule = RULE
) -> Iterator[tuple[Iteration, TraceStep]]:
    """Yield the iterations. An error that GradScaler raises about its use becomes an AmpFailure with the same text."""
    begun: list[Iteration] = []
    iterations = training.iterations(steps, scale, rule, begun.append)
    for index in range(steps):
        try:
            result = next(iterations)
        except (RuntimeError, AssertionError, ValueError) as error:
            if not _is_refusal(error):
                raise
            latest = begun[-1] if begun else None
            raise refused(f"{training.case.name}, iteration {index}", error, latest) from error
        yield result


def _is_refusal(error: Exception) -> bool:
    words = ("since the last update()", "after step()", "No inf checks were recorded", "_scale is None", "Closure use")
    return any(part in str(error) for part in words)


def _check_gradients(training: Training, iteration: Iteration, scale: float) -> None:
    """Raise AmpFailure unless the optimizer receives the same gradients at two scales."""
    smaller, _ = _first(_clean(training), scale / _OTHER_SCALE)
    distance = _distance(iteration, smaller)
    if distance <= _DISTANCE:
        return
    flushed = _flushed(iteration, smaller)
    if flushed > distance / 2:
        raise of_underflow(training, scale / _OTHER_SCALE, flushed)
    again, _ = _first(_clean(training), scale)
    raise AmpFailure(
        f"{training.case.name}: the gradients that the optimizer sees depend on the scale",
        label_before="rule",
        before=f"the same at the scale S and at S / {_OTHER_SCALE:.0f}, except for rounding",
        now=f"relative distance {distance:.3g}",
        likely=likely_of_difference(training, scale, repeats=_distance(iteration, again) <= _DISTANCE),
    )


def _distance(iteration: Iteration, other: Iteration) -> float:
    """Return the relative distance of the optimizer's gradients in two first iterations."""
    if not other.gradients_by_step:
        return math.inf  # one of them is nonfinite, and its step was skipped
    # Those of later steps are of weights that earlier ones have changed, by the rounding of their gradients, too.
    return distance_of(iteration.gradients_by_step[0], other.gradients_by_step[0])


def _flushed(iteration: Iteration, smaller: Iteration) -> float:
    """Return the share of the gradients' size that is zero at the ``smaller`` scale alone."""
    if not smaller.gradients_by_step:
        return 0.0
    gradients, at_smaller = iteration.gradients_by_step[0], smaller.gradients_by_step[0]
    return distance_of(gradients, [a.where(b != 0, 0) for a, b in zip(gradients, at_smaller, strict=False)])
