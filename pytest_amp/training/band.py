"""Band in which the loss of a mixed-precision run must stay, from float32 runs perturbed by rounding-sized noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_amp.account import receive
from pytest_amp.cases import passes
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import standard_step
from pytest_amp.training.trajectory import Setup, Trajectory, run

#: Number of companions: perturbed float32 runs. In a window of five steps they give twenty values for the spread.
COMPANIONS = 4
#: Number of further companions, if all draw their own random numbers, and how much farther out than the farthest of all
#: a run may be.
_FURTHER, _BEYOND = 12, 1.5
#: Steps before and after a step that contribute to its spread: half of the window.
_AROUND = 2
#: Half width of the band, in spreads. See ``Band``.
WIDTH = 4.0
_ROUNDINGS = "two roundings of the loss in the low dtype"


@dataclass(frozen=True)
class Band:
    """Loss of the float32 run at each step, and the allowed deviation of the mixed-precision run.

    ``spread`` is the root mean square deviation of the companions' losses from the float32 loss, over all companions
    and a window of five steps. ``half`` is the half width of the band: ``WIDTH`` spreads, and at least two unit
    roundoffs of the loss in the low dtype; where the loss has converged, at least ``converged_loss``. ``more`` names
    companions other than those of ``companions_of``. docs/lab/training.md lists the deviations, in spreads, of correct
    runs and of faults.
    """

    losses: tuple[float, ...]
    spread: tuple[float, ...]
    half: tuple[float, ...]
    more: str = ""
    #: Reason for the half width of each step at which the rounding of the loss, and not the spread, decides it.
    floors: Mapping[int, str] = field(default_factory=dict)

    def width_in_words(self, step: int) -> str:
        """Return the reason for the half width of a step: the spread of the companions, or the rounding of the loss."""
        runs = f"{WIDTH:.0f} spreads of float32 runs whose weights are rounded{self.more}"
        return f"{self.floors[step]}; {runs} are less" if step in self.floors else runs

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
        return self._change(self.most_visible)

    @property
    def most_visible(self) -> int:
        """Return the step at which the float32 loss has changed most since step 0, in half widths."""
        return max(range(len(self.losses)), key=self._change)

    def _change(self, step: int) -> float:
        return _ratio(abs(self.losses[step] - self.losses[0]), self.half[step])


def _ratio(distance: float, half: float) -> float:
    """Return ``distance`` in half widths; the half width is zero if the loss is zero in every run."""
    if not half:
        return math.inf if distance else 0.0
    return distance / half


def band_of(setup: Setup, plain: Trajectory, *, scale: float = 1.0) -> Band:
    """Return the band around the float32 run ``plain`` of ``setup``; ``scale`` multiplies its width."""
    companions = [companion.losses for companion in companions_of(setup)]
    return make_band(plain.losses, companions, u=setup.precision.u, scale=scale)


def companions_of(
    setup: Setup, *, redraw: bool = False, numbers: Sequence[int] = range(COMPANIONS)
) -> list[Trajectory]:
    """Return float32 runs of ``setup`` that are perturbed by rounding-sized noise; see ``run`` for ``redraw``."""
    return [run(setup, low=False, companion=number, redraw=redraw) for number in numbers]


def further_companions_of(setup: Setup) -> list[Trajectory]:
    """Return the companions, with random numbers of their own, that ``redrawn_band`` needs besides the first ones."""
    return companions_of(setup, redraw=True, numbers=range(COMPANIONS, COMPANIONS + _FURTHER))


def cast_companions_of(setup: Setup) -> list[Trajectory]:
    """Return companions of ``setup`` whose operators round as well: float32 runs with manual casts.

    Weights and gradients alone understate the rounding of a model that amplifies it in between, as BatchNorm over few
    values does. Empty if these runs would call GradScaler as the checked one does, in a training step of the user's,
    and so repeat its faults; if float32 runs have manual casts anyway; and if manual casts fail.
    """
    if setup.manual or (setup.needs_scaler and setup.train is not standard_step):
        return []
    try:
        return companions_of(replace(setup, manual=True))
    except AmpFailure as failure:
        receive(failure)
        return []
    except Exception as error:  # whatever a model raises with manual casts, and not with autocast
        if passes(error):
            raise
        return []


def widened(band: Band, cast: list[list[float]], *, u: float, scale: float = 1.0) -> Band:
    """Return ``band``, as wide as that of the companions with manual casts if they spread more; ``cast``: their losses.

    Their spread is that around their own mean. A distance from the float32 run that all have in common is a bias, not
    rounding: that of a faulty kernel, which manual casts call as well.
    """
    means = [sum(losses) / len(cast) for losses in zip(*cast, strict=True)]
    sample = math.sqrt(len(cast) / (len(cast) - 1))
    centred = [
        [loss + sample * (other - mean) for loss, other, mean in zip(band.losses, losses, means, strict=True)]
        for losses in cast
    ]
    wide = make_band(list(band.losses), centred, u=u, scale=scale)
    pairs = zip((band.spread, band.half), (wide.spread, wide.half), strict=True)
    spread, half = (tuple(map(max, narrow, other)) for narrow, other in pairs)
    floors = {step: reason for step, reason in band.floors.items() if step in wide.floors}
    return Band(band.losses, spread, half, more=", or of runs with manual casts", floors=floors)


def redrawn_band(losses: list[float], redrawn: list[list[float]], *, u: float, scale: float = 1.0) -> Band:
    """Return a band around ``losses`` that contains all ``redrawn`` losses, runs that draw their own random numbers.

    Chance then decides more than rounding, and its tails are longer than those of a spread of four runs: a sample that
    has the one row of a large loss. A healthy run is as likely as any other of n to be the farthest, which is once in
    n + 1; the band ends ``_BEYOND`` times as far out as the farthest. ``scale`` multiplies the resulting width.
    """
    band = make_band(losses, redrawn, u=u)
    factor = max(1.0, _BEYOND * max(band.margin(companion) for companion in redrawn))
    return replace(
        band,
        half=tuple(half * factor * scale for half in band.half),
        more=f", {factor:.2g} times that for {len(redrawn)} runs which all draw different numbers",
        floors={},
    )


def converged_loss(losses: list[float], *, u: float) -> float:
    """Return the loss below which a training has converged: the unit roundoff ``u`` of its first loss.

    Below it the loss and its gradients consist of what rounding has left of a model that knows its batch by heart.
    """
    return u * abs(losses[0])


def make_band(losses: list[float], perturbed: list[list[float]], *, u: float, scale: float = 1.0) -> Band:
    """Return the band of ``losses``. ``perturbed``: the companions' losses; ``u``: unit roundoff of the low dtype."""
    spread, half, floors, converged = [], [], dict[int, str](), converged_loss(losses, u=u)
    for index, loss in enumerate(losses):
        window = range(max(0, index - _AROUND), min(len(losses), index + _AROUND + 1))
        squares = [(companion[step] - losses[step]) ** 2 for companion in perturbed for step in window]
        spread.append(math.sqrt(sum(squares) / len(squares)))
        least = converged if abs(loss) < converged else 2 * u * abs(loss)
        half.append(scale * max(WIDTH * spread[-1], least))
        if WIDTH * spread[-1] < least:
            is_low = abs(loss) < converged
            floors[index] = "a rounding of the first loss, to which training has converged" if is_low else _ROUNDINGS
    return Band(tuple(losses), tuple(spread), tuple(half), floors=floors)
