"""Likely causes of a failing training step with a scaler: the operator that overflows, or is wrong."""

from __future__ import annotations

from typing import Any

import torch

from pytest_amp.cases import Case, Realised
from pytest_amp.devices import Device
from pytest_amp.failure import UNSEEDED, AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.nonfinite import Origin, origin_in_step
from pytest_amp.numerics.predicted import likely_operator
from pytest_amp.precision import Precision
from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.trace import Training
from pytest_amp.scaler.watched import TraceStep

#: Smallest and largest scale that are tried.
LEAST_SCALE, LARGEST_SCALE = 2.0**-24, 2.0**16


def origin_at(  # noqa: PLR0913  # arguments of one step
    case: Case, model: torch.nn.Module, batch: Any, device: Device, precision: Precision, *, seed: int, scale: float
) -> Origin | None:
    """Return the origin of nonfinite values in a step of ``case`` on a copy of ``model``, its loss times ``scale``.

    Return None if loss and gradients are finite: then the training step itself produces them.
    """
    return origin_in_step(
        case,
        Realised(model, batch),
        device.torch_device,
        lambda: device.autocast(precision.dtype),
        seed=seed,
        loss_scale=scale,
    )


def _first_origin(training: Training, realised: Realised, scale: float) -> Origin | None:
    """Return the origin of nonfinite values in the first step of a training, at ``scale``."""
    return origin_at(
        training.case,
        realised.model,
        realised.batch,
        training.device,
        training.precision,
        seed=training.seed,
        scale=scale,
    )


def at_any_scale(training: Training) -> AmpFailure:
    """Return the failure of a training step whose gradients are finite at none of the tried scales."""
    origin = _first_origin(training, training.case.realise(seed=training.seed), LEAST_SCALE)
    return AmpFailure(
        f"{training.case.name}: the gradients are not finite at any scale from 65536 down to 2**-24",
        now=None if origin is None else origin.now,
        likely="the training step itself: the case's loss and its gradients are finite at a scale of 2**-24"
        if origin is None
        else origin.likely,
    )


def of_underflow(training: Training, scale: float, share: float) -> AmpFailure:
    """Return the failure of gradients of which ``share`` underflows at ``scale``, while a larger one overflows."""
    realised, larger, origin = training.case.realise(seed=training.seed), scale, None
    while origin is None and larger < LARGEST_SCALE:
        larger *= 4
        origin = _first_origin(training, realised, larger)
    now = f"{share:.0%} of the gradients' size is 0 at a scale of {scale:.3g}"
    return AmpFailure(
        f"{training.case.name}: no scale fits the gradients: at one where all are finite, others underflow",
        now=now if origin is None else f"{now}; at {larger:.3g}, {origin.now}",
        likely="the training step itself divides its loss or its gradients" if origin is None else origin.likely,
    )


def likely_of_skip(training: Training, iteration: Iteration, step: TraceStep) -> str:
    """Return why a step was skipped, or had no effect, in an iteration without planted overflow."""
    if not step.found_inf:
        return "the loss reaches no parameter, its gradient is zero, or the optimizer leaves parameters as they are"
    origin = origin_at(
        iteration.case,
        iteration.model,
        iteration.batch,
        iteration.device,
        iteration.precision,
        seed=training.seed + iteration.index,
        scale=step.scale,
    )
    if origin is None:
        return f"the training step itself: the case's loss and its gradients are finite at a scale of {step.scale:g}"
    return str(origin)


def likely_of_skips(iteration: Iteration) -> str:
    """Return why a scaler skips the same step repeatedly."""
    if "update" not in iteration.scaler.called:
        return "scaler.update() is never called, so that the scale stays where it is"
    scale = iteration.scaler.get_scale()
    origin = origin_at(
        iteration.case, iteration.model, iteration.batch, iteration.device, iteration.precision, seed=0, scale=scale
    )
    if origin is None:
        return f"the training step itself: the case's loss and its gradients are finite at a scale of {scale:g}"
    return str(origin)


def likely_of_difference(training: Training, scale: float, *, repeats: bool) -> str:
    """Return why the gradients that the optimizer receives depend on the scale.

    ``repeats`` is True if they are equal in two runs at the same scale. An operator that violates its rounding model is
    a more likely cause than a training step that clips.
    """
    where = Conditions(training.device, training.precision, training.seed)
    operator = likely_operator(training.case, training.case.realise(seed=training.seed), where, scale)
    if not repeats:
        return f"two iterations at one scale differ, too: {operator or UNSEEDED}"
    return operator or "gradients are clipped, or read, before scaler.unscale_(optimizer)"
