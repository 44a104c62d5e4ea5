"""Predicted rounding of one step of a training: its gradients exactly, and with the rounding of mixed precision."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import torch

from pytest_amp.account import receive
from pytest_amp.cases import Realised, passes
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Prediction, Step, predict
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.tolerance import MOST_NOISE
from pytest_amp.training.trajectory import Setup, TrainingIteration, run


@dataclass(frozen=True)
class RoundedStep:
    """Gradients of a step by parameter: in float64, as the rounding oracle predicts them, and with manual casts.

    ``predicted`` is empty for a model that the oracle cannot follow. ``vanishing`` are the parameters whose exact
    gradient is zero but for the rounding of float64.
    """

    exact: Mapping[str, torch.Tensor]
    predicted: Mapping[str, torch.Tensor]
    cast: Mapping[str, torch.Tensor]
    vanishing: frozenset[str]

    @property
    def flushed(self) -> float:
        """Share of gradients that are exactly zero with manual casts, which scale the loss as far as they can.

        Zero if these gradients, taken together, are further from the exact ones than rounding may be: what is lost
        then is no small part.
        """
        both = [(self.cast[name], exact) for name, exact in self.exact.items() if name in self.cast]
        lost = sum(float((cast - exact).norm()) ** 2 for cast, exact in both)
        if not both or lost > MOST_NOISE**2 * sum(float(exact.norm()) ** 2 for _, exact in both):
            return 0.0
        return sum(int((cast == 0).sum()) for cast, _ in both) / max(sum(cast.numel() for cast, _ in both), 1)


def rounded_step(setup: Setup, index: int, names: Container[str], draws: Draws) -> RoundedStep | None:
    """Predict the gradients of the parameters ``names`` in step ``index`` from the float32 run's weights before it.

    ``draws`` are the training's random numbers. Returns None for a step that cannot be predicted.
    """
    predicted = predicted_step(setup, index, draws)
    if predicted is None:
        return None
    _, prediction = predicted
    exact = _gradients(prediction.exact, names)
    return RoundedStep(
        exact,
        {} if prediction.predicted is None else _gradients(prediction.predicted, names),
        _gradients(prediction.reference, names),
        frozenset(name for name in exact if prediction.vanishes(name)),
    )


def predicted_step(setup: Setup, index: int, draws: Draws) -> tuple[Realised, Prediction] | None:
    """Return the float32 run's model before step ``index``, and the step's prediction; None if there is none."""
    try:
        realised = _before_step(setup, index, draws)
        return realised, predict(setup.case, realised, setup.device, setup.precision, seed=setup.seed_of(index))
    except AmpFailure as failure:
        receive(failure)
    except Exception as error:  # whatever a model raises in float64 or with manual casts
        if passes(error):
            raise
    return None


def _before_step(setup: Setup, index: int, draws: Draws) -> Realised:
    """Return the float32 run's model before step ``index``, its batch, and ``draws`` to replay if there are any."""
    instances: dict[int, Realised] = {}

    def train(iteration: TrainingIteration) -> None:
        if iteration.index not in instances:
            instances[iteration.index] = Realised(iteration.model, iteration.batch).on(setup.device.torch_device)
        setup.train(iteration)

    low = setup.plain is not None  # the case of float32 runs has other tensors
    with contextlib.nullcontext() if low else draws.replaying():
        run(replace(setup, train=train, steps=max(index + 1, 2)), low=low)
    return replace(instances[index], draws=draws if draws.recorded else None)


def _gradients(step: Step, names: Container[str]) -> dict[str, torch.Tensor]:
    return {name: gradient for name, gradient in step.named().items() if name in names}
