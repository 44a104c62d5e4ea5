"""What is demanded of the speed of some work, and where it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_amp.cases import expect_number
from pytest_amp.devices import Device, DeviceKind
from pytest_amp.failure import Misuse, is_misuse
from pytest_amp.float32 import Float32Kind
from pytest_amp.floors import Row, calibrated
from pytest_amp.precision import Precision
from pytest_amp.record import Observe
from pytest_amp.speed.environment import doubts_of
from pytest_amp.speed.paired import Plan
from pytest_amp.speed.peaks import peaks_of
from pytest_amp.speed.replay import can_replay
from pytest_amp.speed.verdict import DEVICE_MARGIN, EAGER_MARGIN, Interval

__tracebackhide__ = is_misuse

#: The floor that needs no calibration: 16-bit work in hardware costs hardly more than TF32.
NO_HARM = 0.90
#: No floor at all: what was measured is recorded, and held against a baseline.
NO_FLOOR = 0.0

#: The kinds of float32 to be faster than: their names in torch's settings and in messages.
OVER: dict[str, tuple[Float32Kind, str]] = {"fp32": ("ieee", "IEEE fp32"), "tf32": ("tf32", "TF32")}

#: What is timed: the device's own time, captured in a graph and replayed, or the step as a user waits for it.
KINDS = {"device": "device time", "step": "step time"}
MARGINS = {"device": DEVICE_MARGIN, "step": EAGER_MARGIN}
#: What a speedup may lose against a baseline's, with the margin on top, by how quiet it is between processes: the
#: first pair whose first number is no less than the standard deviation over the mean of its calibration. What is less
#: quiet is not held against a baseline: a healthy card would be red once in a while (tests/speed/test_simulation.py).
TOLERANCES = {"device": ((0.0035, 0.01),), "step": ((0.0075, 0.03), (0.015, 0.06))}
#: What a speedup may lose against a baseline's that it is not held against: all of it.
ANYTHING = 1.0


@dataclass(frozen=True)
class Demand:
    """What is demanded of some work: ``floor`` times as fast under autocast as ``over``.

    ``over`` is ``"fp32"`` (IEEE) or ``"tf32"``, ``kind`` ``"device"`` or ``"step"``; ``name`` is that of the work,
    in messages and observations; ``ceiling`` replaces the speedup that the card's peak rates allow. A floor of
    0 is none. Raises Misuse for a floor or a ceiling that is no such number, an ``over`` and a ``kind`` that is none.
    """

    name: str
    floor: float
    over: str
    kind: str = "step"
    ceiling: float | None = None
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        """Refuse what cannot be demanded."""
        if self.over not in tuple(OVER):
            raise Misuse(f"over={self.over!r} is no kind of float32; valid: {', '.join(OVER)}")
        if self.kind not in tuple(KINDS):
            raise Misuse(f"kind={self.kind!r} is nothing that is timed; valid: {', '.join(KINDS)}")
        expect_number("floor", self.floor, least=0)
        if self.ceiling is not None:
            expect_number("ceiling", self.ceiling, least=0, above=True)

    @property
    def label(self) -> str:
        """The kind of float32, in messages."""
        return OVER[self.over][1]

    @property
    def margin(self) -> float:
        """How far healthy processes differ."""
        return MARGINS[self.kind]

    @property
    def key(self) -> str:
        """What observations are called: work, float32 kind, and what was timed."""
        return f"{self.name}/over-{self.over}/{self.kind}"


@dataclass(frozen=True)
class SpeedConditions:
    """Where and how a check of speed runs.

    ``mode`` is ``"off"`` (with the ``reason``), ``"report"``, which measures and never fails, or
    ``"gate"``; under ``strict`` an inconclusive verdict fails; ``seed`` is that of the data; ``before`` gives
    the interval that a baseline of the same hardware has under a name; ``floors`` are the user's own.
    """

    device: Device
    precision: Precision
    mode: str
    reason: str = ""
    strict: bool = False
    seed: int = 0
    observe: Observe | None = None
    before: Callable[[str], Interval | None] = lambda _: None
    doubts: Callable[[Device], tuple[str, ...]] = doubts_of
    floors: tuple[Row, ...] = ()

    def ceiling(self, over: str) -> float | None:
        """The speedup that the card's peak rates allow; None for a card that is not in the data file."""
        peaks = peaks_of(self.device.describe())
        return peaks.ceiling(over, self.precision.name) if peaks else None

    def calibrated(self, name: str, over: str, kind: str) -> Row | None:
        """What was calibrated for this card; None for work or a card that nobody calibrated."""
        if self.device.kind is not DeviceKind.ACCELERATOR:
            return None
        return calibrated((self.device.describe(), over, self.precision.name, name, kind), self.floors)

    def least(self, demand: Demand) -> tuple[float, Interval | None]:
        """The floor that is held, and the baseline's interval where that is what it comes from.

        With a baseline that is the larger of the demanded floor and what the speedup was, less the tolerance.
        """
        before = self.before(f"{demand.key}/speedup")
        tolerance = None if before is None else self.tolerance(demand, before)
        if before is None or tolerance is None:
            return demand.floor, None
        kept = before.low * (1 - tolerance)
        return (kept, before) if kept > demand.floor else (demand.floor, None)

    def loss(self, demand: Demand) -> float:
        """The part of a baseline's speedup whose loss is none, both intervals given."""
        before = self.before(f"{demand.key}/speedup")
        tolerance = TOLERANCES[demand.kind][-1][1] if before is None else self.tolerance(demand, before)
        return ANYTHING if tolerance is None else 1 - (1 - tolerance) / demand.margin

    def tolerance(self, demand: Demand, before: Interval) -> float | None:
        """The part of a baseline's speedup that may be lost, without the margin; None where it is not held to it.

        What nobody calibrated may lose the most: a device time always, a step time where half the baseline's interval
        is as narrow as a calibration would have to be.
        """
        row = self.calibrated(demand.name, demand.over, demand.kind)
        if row is not None:
            return next((loss for spread, loss in TOLERANCES[demand.kind] if row.spread <= spread), None)
        spread, most = TOLERANCES[demand.kind][-1]
        return most if demand.kind == "device" or before.half_width <= spread else None


def kind_on(device: Device, kind: str) -> str:
    """What is timed on ``device`` where ``kind`` was asked for: the step, where a device has no graphs."""
    return kind if kind != "device" or can_replay(device) else "step"
