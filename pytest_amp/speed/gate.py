"""The check: work under autocast is at least so much faster than in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import pytest
import torch

from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure
from pytest_amp.float32 import Float32Kind, float32_precision
from pytest_amp.precision import Precision
from pytest_amp.speed.benchmark import Benchmark
from pytest_amp.speed.clocks import Clock, ClockError, checked_clock
from pytest_amp.speed.measure import Measured, measure
from pytest_amp.speed.paired import Arms, Plan
from pytest_amp.speed.peaks import peaks_of
from pytest_amp.speed.verdict import Outcome, Rule
from pytest_amp.speed.workloads import Step, arms_of

#: The floor that needs no calibration: 16-bit work in hardware costs hardly more than TF32.
NO_HARM = 0.90
DEFAULT_PLAN = Plan()


@dataclass(frozen=True)
class Over:
    """A kind of float32 to be faster than: its name in keys, in torch's settings, and in messages."""

    name: str
    kind: Float32Kind
    label: str


OVER = {over.name: over for over in (Over("fp32", "ieee", "IEEE fp32"), Over("tf32", "tf32", "TF32"))}


@dataclass(frozen=True)
class Conditions:
    """Where and how a check of speed runs.

    ``mode`` is ``"off"`` (with the ``reason``), ``"report"``, which measures and never fails, or
    ``"gate"``; under ``strict`` an inconclusive verdict fails; ``seed`` is that of the data.
    """

    device: Device
    precision: Precision
    mode: Literal["off", "report", "gate"]
    reason: str = ""
    strict: bool = False
    seed: int = 0


class Observe(Protocol):
    """Records a fact, as ``amp.observe`` does."""

    def __call__(
        self, name: str, value: float, *, kind: str, unit: str | None = None, allowed: float | None = None
    ) -> object:
        """See ``pytest_amp.amp.Amp.observe``."""


def check_speedup(
    make_step: Callable[[], Step],
    *,
    name: str,
    floor: float,
    over: str,
    conditions: Conditions,
    request: pytest.FixtureRequest,
    observe: Observe | None = None,
    plan: Plan = DEFAULT_PLAN,
    ceiling: float | None = None,
    clock: Clock | None = None,
) -> Measured | None:
    """Hold the speedup of autocast over float32, ``over`` ``"fp32"`` (IEEE) or ``"tf32"``, against ``floor``.

    ``make_step`` makes data on the device and the step to be timed; it is called again to confirm a
    failure. ``name`` is that of the work, in messages and observations. ``ceiling`` replaces the speedup
    that the card's peak rates allow, ``clock`` the device's own, which is checked first.

    Raises AmpFailure below the floor, and skips the test with "inconclusive: …" where nothing can be
    said; ValueError for a floor or an ``over`` that is none. Returns what was measured, None where
    ``mode`` is ``"report"`` and the device has no clock.
    """
    if over not in OVER:
        raise ValueError(f"over={over!r}; valid: {', '.join(OVER)}")
    if not 0 < floor < math.inf:
        raise ValueError(f"floor={floor!r} is not a number above 0")
    if conditions.mode == "off":
        pytest.skip(f"speed is off: {conditions.reason}")
    benchmark = Benchmark(request)
    if ceiling is None:
        ceiling = known_ceiling(conditions, over)

    def make_arms() -> Arms:
        torch.manual_seed(conditions.seed)
        return arms_of(make_step(), conditions.device, conditions.precision.dtype)

    try:
        clock = clock or checked_clock(conditions.device)
        with float32_precision(OVER[over].kind):
            measured = measure(make_arms, clock=clock, rule=Rule(floor), plan=plan, ceiling=ceiling)
    except ClockError as error:
        _inconclusive(name, str(error), conditions)
        return None
    benchmark.record(f"{name} over {over}", list(measured.candidate), measured.facts())
    if observe is not None:
        _observe(observe, f"{name}/over-{over}", measured)
    _conclude(name, measured, OVER[over], conditions)
    return measured


def known_ceiling(conditions: Conditions, over: str) -> float | None:
    """The speedup that the card's peak rates allow; None for a card that is not in the data file."""
    peaks = peaks_of(conditions.device.describe())
    return peaks.ceiling(over, conditions.precision.name) if peaks else None


def _observe(observe: Observe, name: str, measured: Measured) -> None:
    interval = measured.verdict.interval
    observe(f"{name}/speedup", interval.median, kind="ratio", allowed=measured.verdict.rule.floor)
    observe(f"{name}/speedup-low", interval.low, kind="ratio")
    observe(f"{name}/speedup-high", interval.high, kind="ratio")
    observe(f"{name}/float32-time", measured.reference_median, kind="seconds", unit="s")
    observe(f"{name}/autocast-time", measured.candidate_median, kind="seconds", unit="s")


def _conclude(name: str, measured: Measured, over: Over, conditions: Conditions) -> None:
    verdict = measured.verdict
    if verdict.outcome is Outcome.INCONCLUSIVE:
        measured_as = f"{verdict.interval} over {over.label}, floor {verdict.rule.floor:g}"
        _inconclusive(name, f"{'; '.join(verdict.reasons)} ({measured_as})", conditions)
    elif verdict.outcome is Outcome.FAIL and conditions.mode == "gate":
        raise _below(name, measured, over, conditions)


def _inconclusive(name: str, reason: str, conditions: Conditions) -> None:
    if conditions.mode == "report":
        return
    if not conditions.strict:
        pytest.skip(f"inconclusive: {name}: {reason}")
    raise AmpFailure(
        f"{name} under {conditions.precision.name} autocast: inconclusive, which --amp-strict refuses",
        label_before="rule",
        before="a verdict on at most 48 quads, on a machine that does nothing else",
        now=reason,
        likely="the device was shared, hot or throttled, or the work does not wait for its device",
        accept="leave --amp-strict out",
    )


def _below(name: str, measured: Measured, over: Over, conditions: Conditions) -> AmpFailure:
    interval, rule, first = measured.verdict.interval, measured.verdict.rule, measured.verdict.unconfirmed
    low = f"{conditions.precision.name} autocast"
    return AmpFailure(
        f"{name} under {low} is {interval.median:.3g} times as fast as in {over.label}",
        label_before="floor",
        before=f"{rule.floor:g} times, with a margin of {rule.margin - 1:.1%}",
        now=(
            f"{interval}, median and {float(rule.confidence):.0%} interval of {interval.quads} quads on "
            f"{conditions.device.describe()}; measured before: {first}"
        ),
        likely="casts are repeated, a fused kernel is lost, or an operator has left autocast's lists",
        accept="give the test a floor of its own: @pytest.mark.amp(floor=…)",
    )
