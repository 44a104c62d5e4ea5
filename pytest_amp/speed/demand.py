"""Requirements for the speed of a workload, and the conditions of its measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_amp.cases import expect_number
from pytest_amp.devices import Device, DeviceKind
from pytest_amp.failure import AmpUsageError, is_usage_error
from pytest_amp.floors import Row, calibrated
from pytest_amp.precision import Precision
from pytest_amp.precision.float32 import Float32Kind
from pytest_amp.record import Observe, shifted
from pytest_amp.record.times import Conditions
from pytest_amp.speed.environment import doubts_of
from pytest_amp.speed.paired import Plan
from pytest_amp.speed.peaks import peaks_of
from pytest_amp.speed.replay import can_replay
from pytest_amp.speed.times import CompareTime, kernels_of
from pytest_amp.speed.verdict import DEVICE_MARGIN, EAGER_MARGIN, Interval
from pytest_amp.speed.yardstick import conditions_of

__tracebackhide__ = is_usage_error

#: The floor without calibration: 16-bit work in hardware takes hardly more time than TF32.
NO_HARM = 0.90
#: No floor: the measurement is recorded, and compared with a baseline.
NO_FLOOR = 0.0

#: The kinds of float32 that a speedup is relative to: their names in torch's settings and in messages.
VERSUS: dict[str, tuple[Float32Kind, str]] = {"fp32": ("ieee", "IEEE fp32"), "tf32": ("tf32", "TF32")}

#: The kinds of time: the device's own time of a step that is captured in a graph and replayed, or the time that a
#: user waits for a step.
KINDS = {"device": "device time", "step": "step time"}
MARGINS = {"device": DEVICE_MARGIN, "step": EAGER_MARGIN}
#: Share of a baseline's speedup that may be lost, in addition to the margin, as pairs (spread, share). The spread of a
#: workload is the standard deviation over the mean in its calibration; the first pair with no smaller spread applies.
#: A workload with a larger spread is not compared with a baseline: a healthy card would sometimes fail
#: (tests/speed/test_simulation.py).
TOLERANCES = {"device": ((0.0035, 0.01),), "step": ((0.0075, 0.03), (0.015, 0.06))}
#: Share of a baseline's speedup that may be lost by a workload that is not compared with it: all of it.
ANYTHING = 1.0


@dataclass(frozen=True)
class Demand:
    """Requirement for a workload: at least ``floor`` times as fast under autocast as in ``versus``.

    ``versus`` is ``"fp32"`` (IEEE) or ``"tf32"``, ``kind`` is ``"device"`` or ``"step"``; ``name`` is the workload's
    name in messages and observations; ``ceiling`` replaces the speedup that the card's peak rates allow. A floor of 0
    means no floor. Raises AmpUsageError for an invalid ``floor``, ``ceiling``, ``versus`` or ``kind``.
    """

    name: str
    floor: float
    versus: str
    kind: str = "step"
    ceiling: float | None = None
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        """Raise AmpUsageError for an invalid field."""
        if self.versus not in tuple(VERSUS):
            raise AmpUsageError(f"versus={self.versus!r} is no kind of float32; expected {', '.join(VERSUS)}")
        if self.kind not in tuple(KINDS):
            raise AmpUsageError(f"kind={self.kind!r} is nothing that is timed; expected {', '.join(KINDS)}")
        expect_number("floor", self.floor, least=0)
        if self.ceiling is not None:
            expect_number("ceiling", self.ceiling, least=0, above=True)

    @property
    def label(self) -> str:
        """The name of the kind of float32 in messages."""
        return VERSUS[self.versus][1]

    @property
    def margin(self) -> float:
        """The factor by which healthy processes may differ."""
        return MARGINS[self.kind]

    @property
    def key(self) -> str:
        """The prefix of observations' names: workload, kind of float32 and kind of time."""
        return f"{self.name}/over-{self.versus}/{self.kind}"


@dataclass(frozen=True)
class SpeedConditions:
    """Conditions of a check of speed.

    ``mode`` is ``"off"`` (with the ``reason``), ``"report"``, which measures and never fails, or ``"gate"``. If
    ``strict``, an inconclusive verdict fails the test. ``seed`` is the seed of the data. ``before`` returns an
    observation's interval, by name, in a baseline of the same hardware. ``floors`` are a user's calibrated floors.

    ``compare_time`` compares a time with a baseline, ``measured_on`` returns the card, the host and the yardstick of a
    measurement, and why there is no yardstick. ``kernels`` returns the seconds of a call's kernels by name; it is
    called after a red check, and if the run is ``recorded``. ``note`` adds a line to the run's notes.
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
    compare_time: CompareTime = lambda *_: None
    measured_on: Callable[..., tuple[Conditions, str]] = conditions_of
    kernels: Callable[[Callable[[], object], Device], dict[str, float]] = kernels_of
    recorded: bool = False
    note: Callable[[str], None] = lambda _: None

    def ceiling(self, versus: str) -> float | None:
        """Return the speedup that the card's peak rates allow; None for a card that is not in the data file."""
        peaks = peaks_of(self.device.describe())
        return peaks.ceiling(versus, self.precision.name) if peaks else None

    def calibrated(self, name: str, versus: str, kind: str) -> Row | None:
        """Return the calibration of a workload on this card; None if there is none."""
        if self.device.kind is not DeviceKind.ACCELERATOR:
            return None
        return calibrated((self.device.describe(), versus, self.precision.name, name, kind), self.floors)

    def least(self, demand: Demand) -> tuple[float, Interval | None]:
        """Return the floor to check, and the baseline's interval if the floor comes from it.

        With a baseline, the floor is the larger of the required floor and the baseline's speedup less the tolerance:
        below it, a comparison of both intervals with the margin of ``loss`` finds the speedup regressed, too.
        """
        before = self.before(f"{demand.key}/speedup")
        tolerance = None if before is None else self.tolerance(demand, before)
        if before is None or tolerance is None:
            return demand.floor, None
        floor = shifted(before.low, -tolerance)
        return (floor, before) if floor > demand.floor else (demand.floor, None)

    def loss(self, demand: Demand) -> float:
        """Return the part of a baseline's speedup that may be lost, for a comparison of both intervals."""
        before = self.before(f"{demand.key}/speedup")
        tolerance = TOLERANCES[demand.kind][-1][1] if before is None else self.tolerance(demand, before)
        return ANYTHING if tolerance is None else 1 - (1 - tolerance) / demand.margin

    def time_loss(self, demand: Demand) -> float:
        """Return the part by which a time may exceed a baseline's, for a comparison of both intervals.

        It is that of a speedup: the largest tolerance of the kind of time, and the margin. Work whose speedup varies
        too much from process to process is not compared.
        """
        row = self.calibrated(demand.name, demand.versus, demand.kind)
        spread, most = TOLERANCES[demand.kind][-1]
        return ANYTHING if row is not None and row.spread > spread else (1 + most) * demand.margin - 1

    def tolerance(self, demand: Demand, before: Interval) -> float | None:
        """Return the part of a baseline's speedup that may be lost, without the margin; None if it is not compared.

        A workload without calibration has the largest tolerance: a device time always, a step time if half the
        baseline's interval is as narrow as the spread of a calibration would have to be.
        """
        row = self.calibrated(demand.name, demand.versus, demand.kind)
        if row is not None:
            return next((loss for spread, loss in TOLERANCES[demand.kind] if row.spread <= spread), None)
        spread, most = TOLERANCES[demand.kind][-1]
        return most if demand.kind == "device" or before.half_width <= spread else None


def kind_on(device: Device, kind: str) -> str:
    """Return the kind of time on ``device`` for a requested ``kind``: the step's on a device without graphs."""
    return kind if kind != "device" or can_replay(device) else "step"
