"""Find the likely cause of a failed training run, from measurements or from the operator that caused the failure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_amp.cases import Realised, loss_of
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.conditioning import jumps_of
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.nonfinite import Origins, origin_in_step, recorded_origins, refusals_are_expected
from pytest_amp.numerics.oracle.module_places import Direction
from pytest_amp.numerics.predicted import likely_operator
from pytest_amp.numerics.prediction import ORACLE, manual_region
from pytest_amp.training.rounding import predicted_step
from pytest_amp.training.trajectory import Setup, TrainingIteration, TrajectoryStep, run

#: Relative difference of gradient norms above which it is reported as the cause; rounding never reaches a tenth.
_OTHER_SIZE = 0.1
#: Ratio of gradient norms that neither missing unscaling nor accumulation explains: no loop has so many micro-batches.
_GARBAGE = 1e3
#: Noise after an operator above which the operator is reported as the cause of a different loss.
_NOISY = 0.05


def likely_overflow(setup: Setup, step: int, *, low: bool = True) -> str:
    """Find the origin of a nonfinite loss in a step of the training, in float32 unless ``low``.

    The training is rerun up to that step. If no operator of its forward pass is the origin, the previous step made the
    model nonfinite, and its origin is returned.
    """
    both = _origins(setup, step, low=low)
    float32 = _origins(setup, step, low=False) if low else (Origins([]), Origins([]))
    for origins, expected in zip(reversed(both), reversed(float32), strict=True):
        origin = origins.first(without=expected)
        if origin is not None:
            return str(origin)
    return "the training step itself: an overflow that no operator of it makes when the training is run again"


def first_of(losses: Sequence[float]) -> int:
    """Return the first step with a nonfinite loss."""
    return next(index for index, loss in enumerate(losses) if not math.isfinite(loss))


def _origins(setup: Setup, step: int, *, low: bool) -> tuple[Origins, Origins]:
    """Return the origins of nonfinite values in the step before ``step``, and in ``step``."""
    device = setup.device.torch_device
    origins: list[Origins] = []
    with contextlib.ExitStack() as stack:
        if step <= 1:
            origins.append(stack.enter_context(recorded_origins(device)))

        def inspect(index: int, iteration: TrainingIteration) -> None:
            if index in (step - 1, step):
                origins[-1].name(iteration.model)
                stack.close()
            if index in (step - 2, step - 1):
                origins.append(stack.enter_context(recorded_origins(device)))

        with refusals_are_expected():
            run(replace(setup, steps=max(step + 1, 2)), low=low, inspect=inspect)
    before, last = [Origins([]), Origins([]), *origins][-2:]
    return before, last


def likely_sizes(setup: Setup, float32: TrajectoryStep, low: TrajectoryStep, scale: float) -> str | None:
    """Return the likely cause of different gradient norms in two runs; None if they are about equal.

    ``float32`` and ``low`` are the same step in float32 and in mixed precision, ``scale`` is the latter's loss scale.
    """
    ratio = low.norm / float32.norm if float32.norm else 1.0
    if 1 - _OTHER_SIZE < ratio < 1 + _OTHER_SIZE:
        return None
    observed = f"the optimizer sees gradients of {ratio:.3g} times their size in float32"
    if scale > 1 and scale / 2 <= ratio <= scale * 2:
        return f"{observed}, about the scale ({scale:g}): not unscaled"
    if not math.isfinite(ratio) or ratio > _GARBAGE:
        operator = likely_operator(setup.case, setup.case.realise(seed=setup.seed), _conditions(setup), scale)
        return (
            f"{observed}: {operator or 'what the training step makes of them, or an operator that is wrong at times'}"
        )
    if ratio > 1:
        return (
            f"{observed}: accumulated without dividing by the number of parts, divided by less, or not unscaled in part"
        )
    return (
        f"{observed}: clipped before scaler.unscale_, a part of the loss that is not scaled, or accumulated, averaged "
        "or divided in the low dtype"
    )


_FIRST = "the first loss, before any update: forward itself computes too much in the low dtype"


def likely_first_loss(setup: Setup) -> str:
    """Return the likely reason why the first loss, before any update, differs from the loss in float32."""
    where, realised = _conditions(setup), setup.case.realise(seed=setup.seed)
    origin = origin_in_step(setup.case, realised, setup.device.torch_device, where.region, seed=setup.seed, hidden=True)
    if origin is not None and origin.direction is Direction.FORWARD:
        return f"{origin.now}, which later operators make finite; take {origin.advice}"
    if setup.device.type in ORACLE:
        jump = _forward_jump(setup, realised, where)
        if jump is not None:
            return f"{_FIRST}: {jump}"
    return f"{_FIRST}, or something else"


def likely_forward(setup: Setup, step: int, draws: Draws, *, allowed: float) -> str | None:
    """Return the cause if the forward pass alone moves the loss of a later step out of its band; None otherwise.

    Manual casts then compute a loss that is off by more than half of ``allowed`` from the float32 run's weights, which
    no update in a low dtype has touched.
    """
    predicted = predicted_step(setup, step, draws)
    if predicted is None:
        return None
    realised, prediction = predicted
    exact, cast = (float(loss_of(run.outputs)) for run in (prediction.exact, prediction.reference))
    if not abs(cast - exact) > allowed / 2:
        return None
    observed = (
        f"the forward pass, not the updates: from the weights of {setup.reference}, too, the loss of this step is "
        f"{cast:.6g} in {setup.precision.name} and {exact:.6g} in float64"
    )
    where = replace(_conditions(setup), seed=setup.seed_of(step))
    jump = _forward_jump(setup, realised, where) if setup.device.type in ORACLE else None
    return observed if jump is None else f"{observed}; {jump}"


def _forward_jump(setup: Setup, realised: Realised, where: Conditions) -> str | None:
    """Return the operator of the forward pass at which noise arises, and advice; None if there is little noise."""
    region = manual_region(setup.device, setup.precision, inside=True)
    jumps = jumps_of(setup.case, realised, where, region, loss_scale=1.0, forward_only=True)
    if jumps and jumps[0].after > _NOISY:
        return f"the noise jumps at {jumps[0]}. {jumps[0].advice}"
    return None


def _conditions(setup: Setup) -> Conditions:
    return Conditions(setup.device, setup.precision, setup.seed)
