"""The check: work under autocast is at least so much faster than in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest
import torch

from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure, Misuse, is_misuse
from pytest_amp.float32 import Float32Kind, float32_precision
from pytest_amp.precision import Precision
from pytest_amp.speed.benchmark import Benchmark
from pytest_amp.speed.clocks import Clock, ClockError, checked_clock
from pytest_amp.speed.measure import Measured, measure
from pytest_amp.speed.paired import Arms, Plan
from pytest_amp.speed.peaks import peaks_of
from pytest_amp.speed.verdict import Outcome, Rule
from pytest_amp.speed.workloads import Step, arms_of

__tracebackhide__ = is_misuse

#: The floor that needs no calibration: 16-bit work in hardware costs hardly more than TF32.
NO_HARM = 0.90

#: The kinds of float32 to be faster than: their names in torch's settings and in messages.
OVER: dict[str, tuple[Float32Kind, str]] = {"fp32": ("ieee", "IEEE fp32"), "tf32": ("tf32", "TF32")}


class Observe(Protocol):
    """Records a fact, as ``amp.observe`` does."""

    def __call__(self, name: str, value: float, *, kind: str, unit: str | None = None) -> object:
        """See ``pytest_amp.amp.base.Bound.observe``."""


@dataclass(frozen=True)
class Demand:
    """What is demanded of some work: ``floor`` times as fast under autocast as ``over``.

    ``over`` is ``"fp32"`` (IEEE) or ``"tf32"``; ``name`` is that of the work, in messages and
    observations; ``ceiling`` replaces the speedup that the card's peak rates allow. Raises Misuse for
    a floor that is not a number above 0, and an ``over`` that is none.
    """

    name: str
    floor: float
    over: str
    ceiling: float | None = None
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        """Refuse what cannot be demanded."""
        if self.over not in OVER:
            raise Misuse(f"over={self.over!r} is no kind of float32; valid: {', '.join(OVER)}")
        if not 0 < self.floor < math.inf:
            raise Misuse(f"floor={self.floor!r} is not a number above 0")

    @property
    def label(self) -> str:
        """The kind of float32, in messages."""
        return OVER[self.over][1]


@dataclass(frozen=True)
class Conditions:
    """Where and how a check of speed runs.

    ``mode`` is ``"off"`` (with the ``reason``), ``"report"``, which measures and never fails, or
    ``"gate"``; under ``strict`` an inconclusive verdict fails; ``seed`` is that of the data.
    """

    device: Device
    precision: Precision
    mode: str
    reason: str = ""
    strict: bool = False
    seed: int = 0
    observe: Observe | None = None

    def ceiling(self, over: str) -> float | None:
        """The speedup that the card's peak rates allow; None for a card that is not in the data file."""
        peaks = peaks_of(self.device.describe())
        return peaks.ceiling(over, self.precision.name) if peaks else None


def check_speedup(
    make_step: Callable[[], Step],
    demand: Demand,
    conditions: Conditions,
    request: pytest.FixtureRequest,
    *,
    clock: Clock | None = None,
) -> Measured | None:
    """Measure how much faster a step is under autocast than in float32, and hold that against a floor.

    ``make_step`` makes data on the device and the step to be timed; it is called again to confirm a
    failure. ``clock`` replaces the device's own, which is checked first.

    Raises AmpFailure below the floor, and skips the test with "inconclusive: …" where nothing can be
    said. Returns what was measured; None where ``mode`` is ``"report"`` and the device has no clock.
    """
    if conditions.mode == "off":
        pytest.skip(f"speed is off: {conditions.reason}")
    benchmark = Benchmark(request)

    def make_arms() -> Arms:
        torch.manual_seed(conditions.seed)
        return arms_of(make_step(), conditions.device, conditions.precision.dtype)

    try:
        clock = clock or checked_clock(conditions.device)
        with float32_precision(OVER[demand.over][0]):
            measured = measure(
                make_arms,
                clock=clock,
                rule=Rule(demand.floor),
                plan=demand.plan,
                ceiling=demand.ceiling or conditions.ceiling(demand.over),
            )
    except ClockError as error:
        _inconclusive(demand, str(error), conditions)
        return None
    facts = {
        "device": conditions.device.describe(),
        "precision": conditions.precision.name,
        "over": demand.over,
        **measured.facts(),
    }
    benchmark.record(f"{demand.name} over {demand.over}", list(measured.candidate), facts)
    _observe(f"{demand.name}/over-{demand.over}", measured, conditions.observe)
    _conclude(demand, measured, conditions)
    return measured


def _observe(name: str, measured: Measured, observe: Observe | None) -> None:
    if observe is None:
        return
    interval = measured.verdict.interval
    observe(f"{name}/speedup", interval.median, kind="ratio")
    observe(f"{name}/speedup-low", interval.low, kind="ratio")
    observe(f"{name}/speedup-high", interval.high, kind="ratio")
    observe(f"{name}/float32-time", measured.reference_median, kind="seconds", unit="s")
    observe(f"{name}/autocast-time", measured.candidate_median, kind="seconds", unit="s")


def _conclude(demand: Demand, measured: Measured, conditions: Conditions) -> None:
    verdict = measured.verdict
    if verdict.outcome is Outcome.INCONCLUSIVE:
        measured_as = f"{verdict.interval} over {demand.label}, floor {demand.floor:g}"
        _inconclusive(demand, f"{'; '.join(verdict.reasons)} ({measured_as})", conditions)
    elif verdict.outcome is Outcome.FAIL and conditions.mode == "gate":
        raise _below(demand, measured, conditions)


def _inconclusive(demand: Demand, reason: str, conditions: Conditions) -> None:
    if conditions.mode == "report":
        return
    if not conditions.strict:
        pytest.skip(f"inconclusive: {demand.name}: {reason}")
    raise AmpFailure(
        f"{demand.name} under {conditions.precision.name} autocast: inconclusive, which --amp-strict refuses",
        label_before="rule",
        before="a verdict on at most 48 quads, on a machine that does nothing else",
        now=reason,
        likely="the device was shared, hot or throttled, or the work does not wait for its device",
        accept="leave --amp-strict out",
    )


def _below(demand: Demand, measured: Measured, conditions: Conditions) -> AmpFailure:
    interval, rule, first = measured.verdict.interval, measured.verdict.rule, measured.verdict.unconfirmed
    low = f"{conditions.precision.name} autocast"
    quads = f"median and {float(rule.confidence):.0%} interval of {interval.quads} quads"
    return AmpFailure(
        f"{demand.name} under {low} is {interval.median:.3g} times as fast as in {demand.label}",
        label_before="floor",
        before=f"{demand.floor:g} times, with a margin of {rule.margin - 1:.1%}",
        now=f"{interval}, {quads} on {conditions.device.describe()}; measured before: {first}",
        likely="casts are repeated, a fused kernel is lost, or an operator has left autocast's lists",
        accept="give the test a floor of its own: @pytest.mark.amp(floor=…)",
    )
