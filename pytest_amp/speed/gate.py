"""Check of a workload's speedup under autocast against its floor and its baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.precision.float32 import float32_precision
from pytest_amp.record import Value
from pytest_amp.record.times import CONDITIONS
from pytest_amp.speed.benchmark import Benchmark
from pytest_amp.speed.clocks import Clock, ClockError, checked_clock
from pytest_amp.speed.demand import KINDS, VERSUS, Demand, SpeedConditions
from pytest_amp.speed.measure import Measured, measure
from pytest_amp.speed.paired import Arms
from pytest_amp.speed.replay import captured
from pytest_amp.speed.times import (
    ArmTime,
    TimeBefore,
    changes,
    float32_gained,
    kernels_in_words,
    milliseconds,
    slowest_in_words,
    times_of,
    top_kernels,
)
from pytest_amp.speed.verdict import PRECISE, Interval, Outcome, Rule, with_floor
from pytest_amp.speed.workloads import TimedStep, arms_of

__tracebackhide__ = is_usage_error

#: Possible causes of a speedup below a floor that no baseline gave: only a baseline tells them apart.
_WITHOUT_A_BASELINE = (
    "torch's kernels for the low dtype are slower, casts are repeated, a fused kernel is lost, or an operator has left "
    "autocast's lists: --amp-baseline with the record of an earlier torch says which arm changed"
)


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
        bench = _Bench(make_step, demand, conditions, clock or checked_clock(conditions.device))
        with float32_precision(VERSUS[demand.versus][0]):
            measured = measure(
                bench.arms,
                clock=bench.clock,
                rule=Rule(floor, margin=demand.margin, precision=PRECISE),
                plan=demand.plan,
                ceiling=demand.ceiling or conditions.ceiling(demand.versus),
                environment=lambda: conditions.doubts(conditions.device),
                slower=lambda measured: any(time.is_slower for time in bench.compared(measured)),
            )
            measured, before = bench.concluded(measured, before)
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
    _observe(bench, measured)
    _conclude(bench, measured, before)
    return measured


class _Bench:
    """One check's work, with the conditions of its times and the comparison of these with a baseline."""

    times: tuple[ArmTime, ArmTime]

    def __init__(
        self, make_step: Callable[[], TimedStep], demand: Demand, conditions: SpeedConditions, clock: Clock
    ) -> None:
        """Measure the yardstick of the device, once in a process."""
        self.demand, self.conditions, self.clock = demand, conditions, clock
        self.kernels: dict[str, Value] = {}
        self._make_step = make_step
        self._measured_on, lacking = conditions.measured_on(conditions.device, clock)
        if lacking:
            conditions.note(lacking)

    def arms(self) -> Arms:
        """Build both arms on new tensors."""
        return _arms(self._make_step, self.demand, self.conditions)

    def compared(self, measured: Measured) -> tuple[ArmTime, ArmTime]:
        """Return the times of both arms, compared with the baseline if a gate judges them."""

        def compare(name: str, interval: Interval) -> TimeBefore | None:
            if self.conditions.mode != "gate":
                return None
            loss = self.conditions.time_loss(self.demand)
            return self.conditions.compare_time(
                f"{self.demand.key}/{name}", interval, loss, self._measured_on.to_json()
            )

        return times_of(measured, (self.demand.label, self.conditions.precision.name), compare)

    def concluded(self, measured: Measured, before: Interval | None) -> tuple[Measured, Interval | None]:
        """Set the compared times, and the kernels of a red check or a recorded run.

        Return the measurement, and the baseline's interval ``before`` if the floor comes from it. It does not if the
        speedup is smaller because float32 became faster: the required floor applies then.

        A yardstick that was measured earlier in the process does not show what happened to the card since: before an
        arm counts as slower, it is measured again.
        """
        self.times = self.compared(measured)
        if any(time.is_slower for time in self.times):
            self._measured_on, _ = self.conditions.measured_on(self.conditions.device, self.clock, again=True)
            self.times = self.compared(measured)
        if before is not None and not measured.doubts and float32_gained(self.times):
            if measured.verdict.outcome is not Outcome.PASS:
                lost = f"{self.demand.name}: {measured.verdict.interval} times as fast as in {self.demand.label}"
                self.conditions.note(f"{lost}, {before} in the baseline, is an improvement: {changes(self.times)}")
            measured = replace(measured, verdict=with_floor(measured.verdict, self.demand.floor))
            before = None
        is_red = measured.verdict.outcome is Outcome.FAIL or any(time.is_slower for time in self.times)
        if self.conditions.mode == "gate" and not measured.doubts and (is_red or self.conditions.recorded):
            arms = self.arms()
            for time, call in zip(self.times, (arms.reference, arms.candidate), strict=True):
                self.kernels[time.name] = top_kernels(self.conditions.kernels(call, self.conditions.device))
        reasons = dict.fromkeys(time.compared.terms.reason for time in self.times if time.compared is not None)
        for reason in filter(None, reasons):
            self.conditions.note(f"times are not compared with the baseline: {reason}")
        return measured, before

    @property
    def measured_on(self) -> Value:
        """Return the conditions and the kernels as an observation's value."""
        return {**self._measured_on.to_json(), "kernels": self.kernels}


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


def _observe(bench: _Bench, measured: Measured) -> None:
    """Observe the speedup and both times with their intervals, and the conditions of the times.

    A value has a direction (``better``), and so is compared with the baseline, only if the mode is ``gate`` and the
    measurement passes: this check already reports a failed or an inconclusive one. The speedup is the last, since its
    comparison reads the times.
    """
    demand, conditions, observe = bench.demand, bench.conditions, bench.conditions.observe
    if observe is None:
        return
    verdict = measured.verdict
    judged = conditions.mode == "gate" and verdict.outcome is not Outcome.INCONCLUSIVE
    observe(f"{demand.key}/{CONDITIONS}", bench.measured_on, kind="measure")
    for time in bench.times:
        is_judged = conditions.mode == "gate" and not measured.doubts and not time.is_slower
        observe(
            f"{demand.key}/{time.name}",
            time.interval.median,
            kind="seconds",
            unit="s",
            interval=(time.interval.low, time.interval.high),
            better="lower" if is_judged else None,
            margin=conditions.time_loss(demand) if is_judged else None,
        )
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


def _conclude(bench: _Bench, measured: Measured, before: Interval | None) -> None:
    demand, conditions, verdict = bench.demand, bench.conditions, measured.verdict
    if conditions.mode == "gate" and not measured.doubts and any(time.is_slower for time in bench.times):
        raise _slower(bench, measured)
    if verdict.outcome is Outcome.INCONCLUSIVE:
        measured_as = f"{verdict.interval} over {demand.label}, floor {verdict.rule.floor:.3g}"
        _inconclusive(demand, f"{'; '.join(verdict.reasons)} ({measured_as})", conditions)
    elif verdict.outcome is Outcome.FAIL and conditions.mode == "gate":
        raise _below(bench, measured, before)


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


def _below(bench: _Bench, measured: Measured, before: Interval | None) -> AmpFailure:
    demand, conditions = bench.demand, bench.conditions
    interval, rule, first = measured.verdict.interval, measured.verdict.rule, measured.verdict.unconfirmed
    quads = f"median and {float(rule.confidence):.0%} interval of {interval.quads} quads"
    margin = f"with a margin of {rule.margin - 1:.1%}"
    lost = conditions.tolerance(demand, before) if before else None
    was = f"{rule.floor:g} times, {margin}" if lost is None else f"{before}, less {lost:.0%} {margin}"
    of_times = changes(bench.times) if before else ""
    slowest = {time.label: slowest_in_words(bench.kernels.get(time.name)) for time in bench.times}
    return AmpFailure(
        f"{_speedup(bench, interval)}, in {KINDS[demand.kind]}{of_times and f': {of_times}'}",
        label_before="baseline" if before else "floor",
        before=was,
        now=f"{interval}, {quads} on {conditions.device.describe()}; measured before: {first}",
        details={label: text for label, text in slowest.items() if text},
        likely=f"{of_times}: the times of both say which arm changed" if of_times else _WITHOUT_A_BASELINE,
        accept="the same command with --amp-accept"
        if before
        else "give the test a floor of its own: @pytest.mark.amp(floor=…)",
    )


def _speedup(bench: _Bench, interval: Interval) -> str:
    low = f"{bench.conditions.precision.name} autocast"
    return f"{bench.demand.name} under {low} is {interval.median:.3g} times as fast as in {bench.demand.label}"


def _slower(bench: _Bench, measured: Measured) -> AmpFailure:
    """Return the failure of a check with an arm that takes longer than in the baseline."""
    demand, (reference, candidate) = bench.demand, bench.times
    was, now, kernels = [], [], {}
    for time in (candidate, reference):
        assert time.compared is not None
        was.append(f"{time.label} {milliseconds(time.compared.before)}")
        now.append(f"{time.label} {milliseconds(time.interval)}")
        recorded = time.compared.kernels if isinstance(time.compared.kernels, dict) else {}
        words = kernels_in_words(recorded.get(time.name), bench.kernels.get(time.name))
        if time.is_slower and words:
            kernels[time.label] = words
    loss = bench.conditions.time_loss(demand)
    return AmpFailure(
        f"{demand.name} takes longer than in the baseline, in {KINDS[demand.kind]}: {changes(bench.times)}",
        label_before="baseline",
        before=f"{', '.join(was)}; either may take {100 * loss:.2g} % longer",
        now=f"{', '.join(now)}; a speedup of {measured.verdict.interval.median:.3g}",
        details=kernels,
        likely=candidate.compared.cause if candidate.compared else None,
        accept="the same command with --amp-accept",
    )
