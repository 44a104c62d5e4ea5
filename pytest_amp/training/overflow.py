"""The operator from which the loss of a step of a training has what is not finite."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_amp.numerics.nonfinite import Origins, recorded_origins
from pytest_amp.training.trajectory import Setup, TrainingIteration, run


def likely_overflow(setup: Setup, step: int, *, low: bool = True) -> str:
    """Return the origin of a loss that is not finite in a step of the training, in float32 unless ``low``.

    The training is run again, up to that step.
    """
    made = _origins(setup, step, low=low)
    origin = made.first(without=_origins(setup, step, low=False) if low else None)
    if origin is not None:
        return str(origin)
    return "the training step itself: the loss is finite when the training is run again, or it has no operator"


def first_of(losses: Sequence[float]) -> int:
    """Return the first step whose loss is not finite."""
    return next(index for index, loss in enumerate(losses) if not math.isfinite(loss))


def _origins(setup: Setup, step: int, *, low: bool) -> Origins:
    """What is not finite, first of all, in one step of a training."""
    with contextlib.ExitStack() as stack:
        origins = [stack.enter_context(recorded_origins(setup.device.torch_device))] if step == 0 else []

        def inspect(index: int, iteration: TrainingIteration) -> None:
            if index == step - 1:
                origins.append(stack.enter_context(recorded_origins(setup.device.torch_device)))
            if index == step:
                origins[0].name(iteration.model)
                stack.close()

        run(replace(setup, steps=max(step + 1, 2)), low=low, inspect=inspect)
    return origins[0]
