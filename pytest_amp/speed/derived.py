"""Floors of work that was not calibrated on a card: from other calibrations, and the peak rates of both cards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_amp.devices import DeviceKind
from pytest_amp.floors import Key, Row, shipped
from pytest_amp.speed.demand import SpeedConditions
from pytest_amp.speed.peaks import Peaks, peaks_of

#: Share of a calibrated speedup that every healthy card reaches: cards differ in clocks under load, in bandwidth and in
#: their kernels, which the ratio of their peak rates does not show.
SHARE = 0.5


@dataclass(frozen=True)
class DerivedFloor:
    """Floor of work on a card that has no calibration of it, and the row that it comes from."""

    floor: float
    row: Row

    def remark(self, card: str, precision: str) -> str:
        """Return a sentence that says where the floor comes from, and which command measures it."""
        scope = card == self.row.gpu
        what = f"{self.row.work} over {self.row.over} in {precision}" if scope else f"{card} in {precision}"
        source = f"in {self.row.dtype}" if scope else f"of {self.row.gpu}, scaled by the peak rates of both cards"
        return (
            f"{what} is not calibrated: a floor is at most {SHARE:g} of the calibrated speedup {source}; "
            "`pytest-amp calibrate` measures it"
        )


def derived(key: Key, rows: Iterable[Row]) -> DerivedFloor | None:
    """Return the floor of work that is not calibrated on its card; None if nothing is known.

    ``key`` is that of a row: card, kind of float32, dtype, work and kind of time. ``rows`` are calibrated floors, of
    which those of the same work, kind of float32 and kind of time count: those of the card in its other dtype, or else
    those of other cards, in ``dtype`` if there are any. The floor of a row is

        SHARE * min(median, ceiling there) * min(1, ceiling here / ceiling there)

    where a ceiling is the speedup that the peak rates of a card allow. A median above its ceiling comes from a kernel
    that float32 does not have, and that another card need not have, either: it counts as its ceiling. The lowest floor
    of all rows is the result. It is None if the peak rates of a card are unknown, or if it does not compute ``dtype``
    in hardware.
    """
    card, over, dtype, work, kind = key
    here = _ceiling(peaks_of(card), over, dtype)
    if here is None:
        return None
    same_work = [row for row in rows if (row.over, row.work, row.kind) == (over, work, kind)]
    of_card = [row for row in same_work if row.gpu == card]
    of_dtype = [row for row in same_work if row.dtype == dtype]
    floors = []
    for row in of_card or of_dtype or same_work:
        there = _ceiling(peaks_of(row.gpu), row.over, row.dtype)
        if there is not None:
            floor = SHARE * min(row.median, there) * min(1.0, here / there)
            floors.append(DerivedFloor(round(floor, 4), row))
    return min(floors, key=lambda entry: entry.floor, default=None)


def _ceiling(peaks: Peaks | None, over: str, dtype: str) -> float | None:
    return None if peaks is None else peaks.ceiling(over, dtype)


def conservative_floor(
    conditions: SpeedConditions, name: str, versus: str, kind: str, uncalibrated: float
) -> tuple[float, str | None]:
    """Return the floor of work that is not calibrated on this card, and a remark that says so.

    The floor is the larger one of ``uncalibrated`` and the derived one. There is no remark for work that is calibrated
    on no card, such as a user's own, unless the card itself is unknown.
    """
    if conditions.device.kind is not DeviceKind.ACCELERATOR:
        return uncalibrated, None
    card, dtype = conditions.device.describe(), conditions.precision.name
    rows = (*conditions.floors, *shipped())
    result = derived((card, versus, dtype, name, kind), rows)
    if result is not None:
        return max(result.floor, uncalibrated), result.remark(card, dtype)
    if any(row.work == name for row in rows) and peaks_of(card) is None:
        remark = f"{card} is not calibrated, and its peak rates are unknown: only work bound by arithmetic has a floor"
        return uncalibrated, f"{remark}; `pytest-amp calibrate` measures one for each work"
    return uncalibrated, None
