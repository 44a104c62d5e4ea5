"""Band in which the loss of a mixed-precision run must stay, from float32 runs perturbed by rounding-sized noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_amp.training.trajectory import Setup, Trajectory, run

#: Number of companions of a float32 run. Five steps of four give the spread at a step from twenty values.
COMPANIONS = 4
#: Steps before and after a step that contribute to its spread.
_AROUND = 2
#: Half of the band's width, in spreads. See ``Band``.
WIDTH = 4.0


@dataclass(frozen=True)
class Band:
    """Loss of the float32 run in each step, and the allowed distance of the mixed-precision run.

    ``spread`` is the root mean square of the companions' distances from it, over them and five steps. Half of the width
    is ``WIDTH`` spreads, and at least two roundings of the loss to the low dtype: docs/lab/training.md has the
    distances, in spreads, of healthy runs and of faults.
    """

    losses: tuple[float, ...]
    spread: tuple[float, ...]
    half: tuple[float, ...]

    def leaves(self, losses: list[float]) -> int | None:
        """Return the first step in which ``losses`` is outside, or nonfinite; None without one."""
        for index, (loss, middle, half) in enumerate(zip(losses, self.losses, self.half, strict=True)):
            if not abs(loss - middle) <= half:
                return index
        return None

    def margin(self, losses: list[float]) -> float:
        """Return the largest used share of the half width."""
        return max(_ratio(abs(x - m), h) for x, m, h in zip(losses, self.losses, self.half, strict=True))

    @property
    def visible(self) -> float:
        """Return the largest distance of the float32 loss from its first value, in half widths: the resolution."""
        first = self.losses[0]
        return max(_ratio(abs(loss - first), half) for loss, half in zip(self.losses, self.half, strict=True))


def _ratio(distance: float, half: float) -> float:
    """Return ``distance`` in half widths; a loss that is zero in each run has a band of width zero."""
    if not half:
        return math.inf if distance else 0.0
    return distance / half


def band_of(setup: Setup, plain: Trajectory, *, scale: float = 1.0) -> Band:
    """Return the band around the float32 run ``plain`` of ``setup``; ``scale`` multiplies its width."""
    return make_band(plain.losses, [other.losses for other in companions_of(setup)], u=setup.precision.u, scale=scale)


def companions_of(setup: Setup, *, redraw: bool = False) -> list[Trajectory]:
    """Return float32 runs of ``setup`` that are perturbed by rounding-sized noise; see ``run`` for ``redraw``."""
    return [run(setup, low=False, companion=index, redraw=redraw) for index in range(COMPANIONS)]


def make_band(losses: list[float], perturbed: list[list[float]], *, u: float, scale: float = 1.0) -> Band:
    """Return the band around ``losses`` from those of companions; ``u`` is the low dtype's unit roundoff."""
    spread, half = [], []
    for index, loss in enumerate(losses):
        near = range(max(0, index - _AROUND), min(len(losses), index + _AROUND + 1))
        squares = [(other[at] - losses[at]) ** 2 for other in perturbed for at in near]
        spread.append(math.sqrt(sum(squares) / len(squares)))
        half.append(scale * max(WIDTH * spread[-1], 2 * u * abs(loss)))
    return Band(tuple(losses), tuple(spread), tuple(half))
