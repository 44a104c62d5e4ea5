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
from pytest_amp.scaler.parts import check_parts, lines_that_read_gradients
from pytest_amp.scaler.reasons import at_any_scale, likely_of_difference, likely_of_skip
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.refusal import refused
from pytest_amp.scaler.regions import check_region
from pytest_amp.scaler.trace import RefusedOverflow, Training
from pytest_amp.scaler.watched import ScalerTrace, TraceStep

__tracebackhide__ = is_usage_error

#: Growth after three iterations without overflow, so that a short run includes one.
RULE = UpdateRule(growth_interval=3)
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
    low_loss: bool = False


def check_scaler(
    training: Training, observe: Observe, *, nonfinite_buffers: Collection[str], note: Callable[[str], object]
) -> tuple[TraceStep, ...]:
    """Run the training step with planted overflow. Raises AmpFailure; see ``Amp.check_scaler``.

    ``note`` receives a line about known behaviour that is not a failure.
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
    except RefusedOverflow as refusal:
        training = replace(training, overflow_activations_at=())
        scale, observed = _run(training, nonfinite_buffers)
        observed.refused.append(refusal.place)
        note(_refused(training, refusal))
    name = training.case.name
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
    scale = _largest_scale(training) / _peak(bad, steps)
    for _ in range(_RUNS - 1):
        with contextlib.suppress(_OwnOverflow):
            return scale, _run_iterations(training, nonfinite_buffers, steps, scale, again=True)
        scale *= _LESS
    return scale, _run_iterations(training, nonfinite_buffers, steps, scale, again=False)


def _run_iterations(
    training: Training, nonfinite_buffers: Collection[str], steps: int, scale: float, *, again: bool
) -> _Seen:
    """Run the iterations and return their results. Raises _OwnOverflow if another run may follow (``again``)."""
    bad, observed = {*training.overflow_gradients_at, *training.overflow_activations_at}, _Seen()
    for iteration, step in _guarded(training, steps, scale):
        if again and iteration.index and step.found_inf and iteration.index not in bad:
            raise _OwnOverflow
        check_calls(training.case.name, training.train, iteration)
        if iteration.index == 0:
            expect_buffers(training, iteration.model, nonfinite_buffers)
            check_region(iteration, again=lambda: _first(_clean(training), scale))
            observed.low_loss = torch.float16 in iteration.scaler.scaled
        check_stale(training.case.name, training.train, iteration)
        if iteration.index == 0 and iteration.seen and not step.found_inf:
            check_parts(training)
            _check_gradients(training, iteration, scale)
        _check_outcome(training, iteration, step)
        _check_scale(training, iteration, step)
        for name in take_nonfinite(iteration.model):
            observed.nonfinite.setdefault(name, []).append(iteration.index)
        observed.traced.append(step)
        if iteration.index in training.overflow_activations_at and not step.found_inf:
            observed.swallowed.append(f"{iteration.index} ({iteration.planted_in})")
    return observed


def _refused(training: Training, refusal: RefusedOverflow) -> str:
    return (
        f"{training.case.name}: the training step raises at the inf that was planted in its forward pass ({refusal}), "
        "and overflow there is left out; overflow_activations_at=() says that this is known"
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


def _peak(bad: Collection[int], steps: int) -> float:
    """Return the factor by which the scale can grow, in a run with overflow in the iterations ``bad``."""
    state, peak = (1.0, 0), 1.0
    for index in range(steps):
        state = RULE.after(*state, found_inf=index in bad)
        peak = max(peak, state[0])
    return peak


def _largest_scale(training: Training) -> float:
    """Return half of the largest scale up to 65536 at which the first iteration does not overflow by itself."""
    for exponent in range(16, -25, -2):
        _, step = _first(_clean(training), 2.0**exponent)
        if not step.found_inf:
            return 2.0 ** (exponent - 1)
    raise at_any_scale(training)


def _first(training: Training, scale: float) -> tuple[Iteration, TraceStep]:
    """Run one iteration on a fresh model and return it."""
    (result,) = _guarded(training, 1, scale)
    return result


def _guarded(training: Training, steps: int, scale: float) -> Iterator[tuple[Iteration, TraceStep]]:
    """Yield the iterations. An error that GradScaler raises about its use becomes an AmpFailure with the same text."""
    begun: list[Iteration] = []
    iterations = training.iterations(steps, scale, RULE, begun.append)
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
    distance = _distance(training, iteration, scale / _OTHER_SCALE)
    if not distance <= _DISTANCE:
        unseeded = not _distance(training, iteration, scale) <= _DISTANCE
        raise AmpFailure(
            f"{training.case.name}: the gradients that the optimizer sees depend on the scale",
            label_before="rule",
            before=f"the same at the scale S and at S / {_OTHER_SCALE:.0f}, except for rounding",
            now=f"relative distance {distance:.3g}",
            likely=likely_of_difference(training, scale, repeats=not unseeded),
        )


def _distance(training: Training, iteration: Iteration, scale: float) -> float:
    """Return the relative distance of the optimizer's gradients from those of a first iteration at ``scale``."""
    other, _ = _first(_clean(training), scale)
    if len(iteration.seen) != len(other.seen):  # one of them is nonfinite, and its step was skipped
        return math.inf
    pairs = list(zip(iteration.seen, other.seen, strict=True))
    difference = torch.stack([(left - right).norm() for left, right in pairs]).norm()
    size = torch.stack([left.norm() for left, _ in pairs]).norm()
    return float(difference / size) if float(size) else 0.0


def _check_outcome(training: Training, iteration: Iteration, step: TraceStep) -> None:
    name, index = training.case.name, iteration.index
    overflows = index in training.overflow_gradients_at
    if not iteration.planted and (overflows or index in training.overflow_activations_at):
        if overflows:
            raise AmpUsageError(
                f"case {name}: no overflow could be planted in iteration {index}: no gradient is accumulated"
            )
        low = training.precision.dtype_name
        raise AmpUsageError(f"case {name}: no module returns a tensor in {low}; expected overflow_activations_at=()")
    if index in training.overflow_activations_at:
        overflows = step.found_inf  # an activation may make it finite again
    if step.found_inf != overflows or step.skipped != overflows:
        raise AmpFailure(
            f"{name}, iteration {index}: "
            + (
                "a step with an overflow is taken"
                if overflows
                else "a step is skipped, or does nothing, without an overflow"
            ),
            label_before="rule",
            before="a step with an inf or NaN among its gradients changes no parameter; every other step does",
            now=f"found inf: {step.found_inf}, skipped: {step.skipped}, scale {step.scale}",
            site=_lines_of_outcome(training, iteration, is_stepped=overflows),
            likely="gradients are repaired, replaced or zeroed before the scaler checks them"
            if overflows
            else likely_of_skip(training, iteration, step),
        )


def _lines_of_outcome(training: Training, iteration: Iteration, *, is_stepped: bool) -> str | None:
    """Return the lines that change gradients before the scaler reads them, or else the lines that step."""
    lines = lines_that_read_gradients(training) if is_stepped else []
    return ", ".join(lines or iteration.scaler.lines.get("step", [])) or None


def _check_scale(training: Training, iteration: Iteration, step: TraceStep) -> None:
    expected = RULE.after(step.scale, iteration.tracker_before, found_inf=step.found_inf)
    if (step.scale_after, step.growth_tracker) != expected:
        raise AmpFailure(
            f"{training.case.name}, iteration {iteration.index}: the scale does not follow the rule",
            label_before="rule",
            before=f"scale {expected[0]}, growth tracker {expected[1]}",
            now=f"scale {step.scale_after}, growth tracker {step.growth_tracker}",
            site=", ".join(iteration.scaler.lines.get("update", [])) or None,
            likely="update is given a scale, or the scaler is changed by other means",
        )
