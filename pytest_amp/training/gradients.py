"""Comparison of the gradients of a training's first steps with float32's, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.draws import Draws
from pytest_amp.training.reasons import likely_sizes
from pytest_amp.training.rounding import RoundedStep, rounded_step
from pytest_amp.training.trajectory import Setup, Trajectory

#: Allowed distance of a parameter's gradient from float32's in the first steps, relative to its size; a gradient
#: smaller than a share of the average one is measured by that share. The distance of a disturbed step, times a factor,
#: if larger: of a companion's, and of one with the predicted rounding of mixed precision.
_FAR, _PART, _DISTURBED = 0.5, 0.05, 8.0


class Doubtful(AmpFailure):
    """Failure that may be chance: the training is drawn again before it counts."""


def check_gradients(
    setup: Setup, plain: Trajectory, low_run: Trajectory, companions: Sequence[Trajectory], draws: Draws
) -> None:
    """Raise AmpFailure for a gradient of the first steps that differs from float32's, whatever the loss does.

    Companions round weights and whole gradients, but no intermediate result. Where these cancel (the bias of a layer
    before BatchNorm has a gradient of zero), a gradient consists of their rounding, which the rounding oracle predicts.
    """
    for index, step in enumerate(plain.steps):
        if not step.gradients:
            return
        distances = _distances(step.gradients, low_run.steps[index].gradients)
        spread = _largest(_distances(step.gradients, companion.steps[index].gradients) for companion in companions)
        far = _beyond(distances, spread)
        if far:
            rounded = rounded_step(setup, index, step.gradients, draws)
            if rounded is not None:
                spread = _largest([spread, _distances_of_rounding(rounded)])
                far = _beyond(far, spread)
        if far:
            name = max(far, key=lambda parameter: far[parameter])
            raise Doubtful(
                f"{setup.case.name}, step {index}: the gradient of {name} is not that of float32"
                + (f" (nor is that of {len(far) - 1} more)" if len(far) > 1 else ""),
                label_before="fp32",
                before=f"within {_allowed(spread, name):.2g} of its size; runs that rounding "
                f"disturbs are {spread.get(name, 0.0):.2g} away",
                now=f"{far[name]:.3g} of its size away in {setup.precision.name}",
                likely=likely_sizes(setup, step, low_run.steps[index], low_run.scaler.get_scale())
                or "garbage from one layer, or a part of the loss that is not scaled; the loss may fall all the same",
            )


def _allowed(spread: Mapping[str, float], name: str) -> float:
    return max(_FAR, _DISTURBED * spread.get(name, 0.0))


def _beyond(distances: Mapping[str, float], spread: Mapping[str, float]) -> dict[str, float]:
    """Return the distances that are larger than the disturbed steps' ``spread`` allows, by parameter."""
    return {name: distance for name, distance in distances.items() if not distance <= _allowed(spread, name)}


def _largest(distances: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest distance of several steps, by parameter."""
    largest: dict[str, float] = {}
    for step in distances:
        for name, distance in step.items():
            largest[name] = max(largest.get(name, 0.0), distance)
    return largest


def _distances_of_rounding(rounded: RoundedStep) -> dict[str, float]:
    """Return the relative distance of predicted gradients from exact ones, by parameter.

    A gradient that is zero has in manual casts another draw of its rounding, which counts if it is larger: a few
    elements may have a small error by chance.
    """
    cast = {name: gradient for name, gradient in rounded.cast.items() if name in rounded.vanishing}
    return _largest(_distances(rounded.exact, step) for step in (rounded.predicted, cast))


def _distances(plain: Mapping[str, torch.Tensor], step: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the relative distance of a step's gradients from those of the step ``plain``, by parameter."""
    elements = sum(gradient.numel() for gradient in plain.values())
    norm = sum(float(gradient.norm()) ** 2 for gradient in plain.values()) ** 0.5
    average = norm / max(elements, 1) ** 0.5
    distances = {}
    for name, gradient in plain.items():
        if name in step:
            size = max(float(gradient.norm()), _PART * average * gradient.numel() ** 0.5)
            difference = float((step[name] - gradient).norm())
            distances[name] = difference / size if size else 0.0
    return distances
