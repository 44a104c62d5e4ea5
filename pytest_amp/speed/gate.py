"""Check of a workload's speedup under autocast against its floor and its baseline."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.precision.float32 import float32_precision
from pytest_amp.speed.benchmark import Benchmark
from pytest_amp.speed.clocks import Clock, ClockError, checked_clock
from pytest_amp.speed.demand import KINDS, VERSUS, Demand, SpeedConditions
from pytest_amp.speed.measure import Measured, measure
from pytest_amp.speed.paired import Arms
from pytest_amp.speed.replay import captured
from pytest_amp.speed.verdict import PRECISE, Interval, Outcome, Rule
from pytest_amp.speed.workloads import TimedStep, arms_of

__tracebackhide__ = is_usage_error


def check_speedup(
    make_step: Callable[[], TimedStep],
    demand: Demand,
    conditions: SpeedConditions,
    request: pytest.FixtureRequest,
    *,
    clock: Clock | None = None,
) -> Measured | None:
    """Measure the speedup of a step under autocast over float32, and compare it with a floor.

    ``make_step`` creates data on the device and the step to be timed; it is called again to confirm a failure. Without
    ``clock`` the device's clock is used, once it has been checked.

    Raises AmpFailure below the floor or the baseline, and for a step that cannot be captured. An inconclusive
    measurement skips the test, or raises AmpFailure if ``conditions.strict``. Returns the measurement; None if ``mode``
    is ``"report"`` and the device has no clock.
    """
    if conditions.mode == "off":
        pytest.skip(f"speed is off: {conditions.reason}")
    benchmark = Benchmark(request)
    floor, before = conditions.least(demand)
    try:
        clock = clock or checked_clock(conditions.device)
        with float32_precision(VERSUS[demand.versus][0]):
            measured = measure(
                lambda: _arms(make_step, demand, conditions),
                clock=clock,
                rule=Rule(floor, margin=demand.margin, precision=PRECISE),
                plan=demand.plan,
                ceiling=demand.ceiling or conditions.ceiling(demand.versus),
                environment=lambda: conditions.doubts(conditions.device),
            )
    except ClockError as error:
        _inconclusive(demand, str(error), conditions)
        return None
    facts = {
        "work": demand.name,
        "device": conditions.device.describe(),
        "precision": conditions.precision.name,
        "over": demand.versus,
        "kind": demand.kind,
        "baseline": [before.low, before.high] if before else None,
        **measured.facts(),
    }
    benchmark.record(f"{demand.name} over {demand.versus}, {demand.kind}", list(measured.candidate), facts)
    _observe(demand, measured, conditions)
    _conclude(demand, measured, before, conditions)
    return measured


def _arms(make_step: Callable[[], TimedStep], demand: Demand, conditions: SpeedConditions) -> Arms:
    """Build both arms on new tensors. They are captured in graphs if device time is measured."""
    torch.manual_seed(conditions.seed)
    arms = arms_of(make_step(), conditions.device, conditions.precision.dtype)
    if demand.kind != "device":
        return arms
    what = f"{demand.name} in {{}} on {conditions.device.key}"
    return Arms(
        captured(arms.reference, conditions.device, what.format(demand.label)),
        captured(arms.candidate, conditions.device, what.format(f"{conditions.precision.name} autocast")),
    )


def _observe(demand: Demand, measured: Measured, conditions: SpeedConditions) -> None:
    """Observe the speedup with its interval, and both times.

    The speedup has a direction (``better``), and so is compared with the baseline, only if the mode is ``gate`` and the
    measurement passes: this check already reports a failed or an inconclusive one.
    """
    observe = conditions.observe
    if observe is None:
        return
    verdict = measured.verdict
    judged = conditions.mode == "gate" and verdict.outcome is not Outcome.INCONCLUSIVE
    observe(
        f"{demand.key}/speedup",
        verdict.interval.median,
        kind="ratio",
        unit="times",
        allowed=verdict.rule.floor or None,
        interval=(verdict.interval.low, verdict.interval.high),
        better="higher" if judged and verdict.outcome is not Outcome.FAIL else None,
        margin=conditions.loss(demand) if judged else None,
    )
    observe(f"{demand.key}/float32-time", measured.reference_median, kind="seconds", unit="s")
    observe(f"{demand.key}/autocast-time", measured.candidate_median, kind="seconds", unit="s")


def _conclude(demand: Demand, measured: Measured, before: Interval | None, conditions: SpeedConditions) -> None:
    verdict = measured.verdict
    if verdict.outcome is Outcome.INCONCLUSIVE:
        measured_as = f"{verdict.interval} over {demand.label}, floor {verdict.rule.floor:.3g}"
        _inconclusive(demand, f"{'; '.join(verdict.reasons)} ({measured_as})", conditions)
    elif verdict.outcome is Outcome.FAIL and conditions.mode == "gate":
        raise _below(demand, measured, before, conditions)


def _inconclusive(demand: Demand, reason: str, conditions: SpeedConditions) -> None:
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


def _below(demand: Demand, measured: Measured, before: Interval | None, conditions: SpeedConditions) -> AmpFailure:
    interval, rule, first = measured.verdict.interval, measured.verdict.rule, measured.verdict.unconfirmed
    low = f"{conditions.precision.name} autocast"
    quads = f"median and {float(rule.confidence):.0%} interval of {interval.quads} quads"
    margin = f"with a margin of {rule.margin - 1:.1%}"
    lost = conditions.tolerance(demand, before) if before else None
    was = f"{rule.floor:g} times, {margin}" if lost is None else f"{before}, less {lost:.0%} {margin}"
    return AmpFailure(
        f"{demand.name} under {low} is {interval.median:.3g} times as fast as in {demand.label}, "
        f"in {KINDS[demand.kind]}",
        label_before="baseline" if before else "floor",
        before=was,
        now=f"{interval}, {quads} on {conditions.device.describe()}; measured before: {first}",
        likely="casts are repeated, a fused kernel is lost, or an operator has left autocast's lists",
        accept="the same command with --amp-accept"
        if before
        else "give the test a floor of its own: @pytest.mark.amp(floor=…)",
    )
