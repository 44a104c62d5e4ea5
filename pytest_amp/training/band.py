"""Band in which the loss of a mixed-precision run must stay, from float32 runs perturbed by rounding-sized noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_amp.training.trajectory import Setup, Trajectory, run

#: Number of companions: perturbed float32 runs. In a window of five steps they give twenty values for the spread.
COMPANIONS = 4
#: Steps before and after a step that contribute to its spread: half of the window.
_AROUND = 2
#: Half width of the band, in spreads. See ``Band``.
WIDTH = 4.0


@dataclass(frozen=True)
class Band:
    """Loss of the float32 run at each step, and the allowed deviation of the mixed-precision run.

    ``spread`` is the root mean square deviation of the companions' losses from the float32 loss, over all companions
    and a window of five steps. ``half`` is the half width of the band: ``WIDTH`` spreads, and at least two unit
    roundoffs of the loss in the low dtype. docs/lab/training.md lists the deviations, in spreads, of correct runs and
    of faults.
    """

    losses: tuple[float, ...]
    spread: tuple[float, ...]
    half: tuple[float, ...]

    def leaves(self, losses: list[float]) -> int | None:
        """Return the first step at which ``losses`` leaves the band or is nonfinite; None if there is none."""
        for index, (loss, middle, half) in enumerate(zip(losses, self.losses, self.half, strict=True)):
            # Not ``>``, which is false for a NaN.
            if not abs(loss - middle) <= half:
                return index
        return None

    def margin(self, losses: list[float]) -> float:
        """Return the largest deviation of ``losses`` from the float32 loss, in half widths; at most 1 in the band."""
        triples = zip(losses, self.losses, self.half, strict=True)
        return max(_ratio(abs(loss - middle), half) for loss, middle, half in triples)

    @property
    def visible(self) -> float:
        """Return the largest change of the float32 loss since step 0, in half widths; a small change tests nothing."""
        first = self.losses[0]
        return max(_ratio(abs(loss - first), half) for loss, half in zip(self.losses, self.half, strict=True))


def _ratio(distance: float, half: float) -> float:
    """Return ``distance`` in half widths; the half width is zero if the loss is zero in every run."""
    if not half:
        return math.inf if distance else 0.0
    return distance / half


def band_of(setup: Setup, plain: Trajectory, *, scale: float = 1.0) -> Band:
    """Return the band around the float32 run ``plain`` of ``setup``; ``scale`` multiplies its width."""
    companions = [companion.losses for companion in companions_of(setup)]
    return make_band(plain.losses, companions, u=setup.precision.u, scale=scale)


def companions_of(setup: Setup, *, redraw: bool = False) -> list[Trajectory]:
    """Return float32 runs of ``setup`` that are perturbed by rounding-sized noise; see ``run`` for ``redraw``."""
    return [run(setup, low=False, companion=index, redraw=redraw) for index in range(COMPANIONS)]


def make_band(losses: list[float], perturbed: list[list[float]], *, u: float, scale: float = 1.0) -> Band:
    """Return the band of ``losses``. ``perturbed``: the companions' losses; ``u``: unit roundoff of the low dtype."""
    spread, half = [], []
    for index, loss in enumerate(losses):
        window = range(max(0, index - _AROUND), min(len(losses), index + _AROUND + 1))
        squares = [(companion[step] - losses[step]) ** 2 for companion in perturbed for step in window]
        spread.append(math.sqrt(sum(squares) / len(squares)))
        half.append(scale * max(WIDTH * spread[-1], 2 * u * abs(loss)))
    return Band(tuple(losses), tuple(spread), tuple(half))
