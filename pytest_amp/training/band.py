"""The band in which the loss of a run in mixed precision has to stay: made of float32 runs that rounding disturbs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_amp.training.trajectory import Setup, Trajectory, run

#: Companions of a float32 run. Five steps of four give the spread at a step from twenty values.
COMPANIONS = 4
#: Steps before and after over which the spread of a step is taken.
_AROUND = 2
#: Half of the band's width, in spreads. See ``Band``.
WIDTH = 4.0


@dataclass(frozen=True)
class Band:
    """The loss of the float32 run in each step, and how far from it the run in mixed precision may be.

    ``spread`` is the root mean square of how far the companions are from it, over them and five steps. Half of the
    width is ``WIDTH`` spreads, and at least two roundings of the loss to the low dtype: docs/training.md says how many
    spreads a run is away where all is well, and how many a fault makes.
    """

    losses: tuple[float, ...]
    spread: tuple[float, ...]
    half: tuple[float, ...]

    def leaves(self, losses: list[float]) -> int | None:
        """The first step in which ``losses`` is outside, or is not finite."""
        for index, (loss, middle, half) in enumerate(zip(losses, self.losses, self.half, strict=True)):
            if not abs(loss - middle) <= half:
                return index
        return None

    def margin(self, losses: list[float]) -> float:
        """How much of the half width is used, at most."""
        return max(_ratio(abs(x - m), h) for x, m, h in zip(losses, self.losses, self.half, strict=True))

    @property
    def visible(self) -> float:
        """How far the loss of float32 comes from its first value, in half widths: what the band can tell apart."""
        first = self.losses[0]
        return max(_ratio(abs(loss - first), half) for loss, half in zip(self.losses, self.half, strict=True))


def _ratio(distance: float, half: float) -> float:
    """``distance`` in half widths; where a loss is zero in each run, its band has none."""
    if not half:
        return math.inf if distance else 0.0
    return distance / half


def band_of(setup: Setup, plain: Trajectory, *, scale: float = 1.0) -> Band:
    """Return the band around the float32 run ``plain`` of ``setup``; ``scale`` multiplies its width."""
    return make_band(plain.losses, [other.losses for other in companions_of(setup)], u=setup.precision.u, scale=scale)


def companions_of(setup: Setup) -> list[Trajectory]:
    """Return float32 runs of ``setup`` that rounding disturbs."""
    return [run(setup, low=False, companion=index) for index in range(COMPANIONS)]


def make_band(losses: list[float], others: list[list[float]], *, u: float, scale: float = 1.0) -> Band:
    """The band around ``losses`` from those of companions; ``u`` is the low dtype's unit roundoff."""
    spread, half = [], []
    for index, loss in enumerate(losses):
        near = range(max(0, index - _AROUND), min(len(losses), index + _AROUND + 1))
        squares = [(other[at] - losses[at]) ** 2 for other in others for at in near]
        spread.append(math.sqrt(sum(squares) / len(squares)))
        half.append(scale * max(WIDTH * spread[-1], 2 * u * abs(loss)))
    return Band(tuple(losses), tuple(spread), tuple(half))
