"""One or two paired measurements, and their verdict about a floor."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from pytest_amp.failure import is_usage_error
from pytest_amp.speed.clocks import Clock
from pytest_amp.speed.paired import Arms, Measurement, Plan
from pytest_amp.speed.verdict import (
    Interval,
    Outcome,
    Rule,
    SpeedVerdict,
    combined,
    decide,
    doubted,
    doubts,
    hull,
    interval_of,
)
from pytest_amp.text.table import as_table

__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class Measured:
    """A verdict and the measurement that it is based on.

    ``reference`` and ``candidate`` are seconds per call, the fastest of each block, in time order; the remaining fields
    are those of Measurement; ``doubts`` are the reasons not to trust the measurement. ``earlier`` is the measurement
    that this one repeats, if the first was worse than required.
    """

    verdict: SpeedVerdict
    reference: tuple[float, ...]
    candidate: tuple[float, ...]
    clock: str
    spread: float
    coverage: float
    timings: int
    repeats: tuple[int, ...]
    ceiling: float | None
    doubts: tuple[str, ...] = ()
    earlier: Measured | None = None

    @property
    def times(self) -> tuple[Interval, Interval]:
        """Seconds of a call in float32 and under autocast: the medians over the quads, with their intervals.

        If the measurement was repeated, an interval encloses those of both measurements: it lies beyond a bound only if
        both do.
        """
        reference, candidate = _seconds(self.reference), _seconds(self.candidate)
        if self.earlier is None:
            return reference, candidate
        first, second = self.earlier.times
        return hull(first, reference), hull(second, candidate)

    @property
    def reference_median(self) -> float:
        """Median seconds of a call in float32."""
        return statistics.median(self.reference)

    @property
    def candidate_median(self) -> float:
        """Median seconds of a call under autocast."""
        return statistics.median(self.candidate)

    def __str__(self) -> str:
        """Return a table of the speedup with its interval, and of the times."""
        interval = self.verdict.interval
        rows = [
            ("float32", f"{self.reference_median * 1e3:.3g} ms", ""),
            ("autocast", f"{self.candidate_median * 1e3:.3g} ms", ""),
            ("speedup", f"{interval.median:.3g}", f"{interval.low:.3g} to {interval.high:.3g}"),
        ]
        return as_table(("", self.verdict.outcome.value, "interval"), rows)

    def facts(self) -> dict[str, object]:
        """Return all fields as JSON data."""
        verdict = self.verdict
        return {
            "verdict": verdict.outcome.value,
            "reasons": list(verdict.reasons),
            "ratio": verdict.interval.median,
            "interval": [verdict.interval.low, verdict.interval.high],
            "confidence": float(verdict.rule.confidence),
            "quads": verdict.interval.quads,
            "floor": verdict.rule.floor,
            "margin": verdict.rule.margin,
            "unconfirmed": asdict(verdict.unconfirmed) if verdict.unconfirmed else None,
            "ceiling": self.ceiling,
            "doubts": list(self.doubts),
            "clock": self.clock,
            "spread": self.spread,
            "coverage": self.coverage,
            "timings": self.timings,
            "repeats": list(self.repeats),
            "seconds": {"reference": list(self.reference), "candidate": list(self.candidate)},
        }


def measure(  # noqa: PLR0913  # keywords of one measurement
    make_arms: Callable[[], Arms],
    *,
    clock: Clock,
    rule: Rule,
    plan: Plan,
    ceiling: float | None = None,
    environment: Callable[[], tuple[str, ...]] = tuple,
    slower: Callable[[Measured], bool] = lambda _: False,
) -> Measured:
    """Measure the arms; confirm a speedup below the floor, or a slower arm, by a measurement of new arms.

    ``make_arms`` creates new tensors at each call. ``ceiling`` is the speedup that the device allows, if known;
    ``environment`` returns the reasons not to trust a time measured now, and is called before and after. ``slower``
    returns whether an arm takes longer than in a baseline. Raises ClockError.
    """
    doubtful = environment()
    first = _measured(make_arms(), clock, rule, plan, ceiling)
    if not doubtful and (first.verdict.outcome is Outcome.FAIL or slower(first)):
        second = _measured(make_arms(), clock, rule, plan, ceiling)
        first = replace(second, verdict=combined(first.verdict, second.verdict), earlier=first)
    all_doubts = tuple(dict.fromkeys((*doubtful, *environment())))
    reasons = (*all_doubts, *first.verdict.reasons) if all_doubts else ()
    return replace(first, verdict=doubted(first.verdict, reasons), doubts=(*all_doubts, *first.doubts))


def _measured(arms: Arms, clock: Clock, rule: Rule, plan: Plan, ceiling: float | None) -> Measured:
    measurement = Measurement(arms, clock, plan)
    verdict = decide(measurement.quad, rule, affordable=measurement.affordable)
    all_doubts = (*measurement.doubts, *doubts(verdict.interval, spread=measurement.spread, ceiling=ceiling))
    return Measured(
        verdict=doubted(verdict, all_doubts),
        doubts=all_doubts,
        reference=tuple(measurement.reference),
        candidate=tuple(measurement.candidate),
        clock=clock.name,
        spread=measurement.spread,
        coverage=measurement.coverage,
        timings=measurement.timings,
        repeats=measurement.repeats,
        ceiling=ceiling,
    )


def _seconds(blocks: tuple[float, ...]) -> Interval:
    """Return the interval of the median over quads, which have two blocks of an arm each."""
    return interval_of([math.sqrt(first * last) for first, last in zip(blocks[::2], blocks[1::2], strict=True)])
