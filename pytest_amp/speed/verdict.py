"""Decide whether a measured speedup reaches its floor, which is the required speedup.

A measurement is a series of quads. A quad is four timed blocks, which yield one log-ratio (see paired.py). As in a
sequential test, the measurement is evaluated after 12, 24 and 48 quads; each evaluation is a look. It ends at the first
look with a decision, unless ``Rule.precision`` requires a narrower interval. The functions compute with log-ratios
only, and need no torch, clock or pytest.
"""

from __future__ import annotations

import enum
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

#: Factor by which step times in eager mode may differ between processes on an idle machine.
EAGER_MARGIN = 1.03
#: The same factor for a step that is replayed as a CUDA graph. Measured: 0.1 to 0.2 % (H100 and H200, torch 2.11).
DEVICE_MARGIN = 1.005
CONFIDENCE = Fraction(99, 100)
#: Numbers of quads after which a measurement is evaluated.
LOOKS = (12, 24, 48)
#: Relative half width of the interval down to which a measurement continues after its decision. The interval is then
#: narrow enough to compare the speedup with that of another process.
PRECISE = 0.002
#: Largest ratio of the 90th to the 10th percentile of block times. Above it the measurement is inconclusive, since
#: other programs probably used the machine.
LARGEST_SPREAD = 1.5
#: Factor by which a measured speedup may exceed the ceiling of the hardware before the measurement is doubted.
CEILING_SLACK = 1.1


class Outcome(enum.Enum):
    """Outcome of a measurement with respect to a floor."""

    PASS = "pass"  # noqa: S105  # not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Rule:
    """Requirement that a speedup is at least ``floor``, with a tolerance of the factor ``margin``; both are positive.

    The measurement is evaluated after each number of quads in ``looks``, with intervals of the two-sided confidence
    level ``confidence``. After its decision it continues, if time permits, until the relative half width of the
    interval is at most ``precision``.
    """

    floor: float
    margin: float = EAGER_MARGIN
    confidence: Fraction = CONFIDENCE
    looks: tuple[int, ...] = LOOKS
    precision: float = math.inf


@dataclass(frozen=True)
class Interval:
    """Median of a speedup, or of a time in seconds, over ``quads`` quads, and a confidence interval of the true one."""

    low: float
    median: float
    high: float
    quads: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high / self.low - 1) / 2 if self.low > 0 else math.inf

    def __str__(self) -> str:
        """Format the interval as reports show it: ``1.57 [1.56, 1.58]``."""
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class SpeedVerdict:
    """Outcome of a measurement and its interval.

    ``reasons`` explain an inconclusive outcome, and are empty for any other. ``interval`` is that of the last
    measurement; ``unconfirmed`` is that of the first, if there were two and at least one of them failed.
    """

    outcome: Outcome
    interval: Interval
    rule: Rule
    reasons: tuple[str, ...] = field(default=())
    unconfirmed: Interval | None = None


@functools.cache
def order_statistic_rank(count: int, confidence: Fraction = CONFIDENCE) -> int:
    """Return the largest k for which the k-th smallest and k-th largest of ``count`` values enclose the median.

    The interval has a coverage of at least ``confidence`` for any distribution: the number of values below the median
    is binomial with p = 1/2 (the sign test's interval; H. A. David, H. N. Nagaraja, Order Statistics, 7.1). The
    arithmetic is exact, so that every machine returns the same rank. The result is 0 if ``count`` is too small.
    """
    tail = 0
    for rank in range(count // 2 + 1):
        tail += math.comb(count, rank)
        if 2 * tail > (1 - confidence) * 2**count:
            return rank
    return count // 2


def median_interval(log_ratios: Sequence[float], confidence: Fraction = CONFIDENCE) -> Interval:
    """Return the median of the ratios and its order-statistic interval, which is unbounded for too few ratios.

    ``log_ratios`` are natural logarithms. Raises ValueError if there are none, or if one is not finite.
    """
    interval = interval_of(log_ratios, confidence)
    return Interval(math.exp(interval.low), math.exp(interval.median), math.exp(interval.high), interval.quads)


def interval_of(values: Sequence[float], confidence: Fraction = CONFIDENCE) -> Interval:
    """Return the median of the values and its order-statistic interval. Raises ValueError as ``median_interval``."""
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"{len(values)} log-ratios or times, some of them not finite")
    ordered = sorted(values)
    rank = order_statistic_rank(len(ordered), confidence)
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (-math.inf, math.inf)
    return Interval(low, statistics.median(ordered), high, len(ordered))


def judge(interval: Interval, rule: Rule) -> Outcome:
    """Return the outcome of one look.

    The outcome is PASS if the whole interval is at or above the floor, and FAIL if the whole interval is below the
    floor by more than the margin. At the last look it is also PASS if the median reaches the floor and the lower end of
    the interval is below it by no more than the margin.
    """
    if interval.high * rule.margin < rule.floor:
        return Outcome.FAIL
    if interval.low >= rule.floor:
        return Outcome.PASS
    last = interval.quads >= rule.looks[-1]
    if last and interval.median >= rule.floor and interval.low * rule.margin >= rule.floor:
        return Outcome.PASS
    return Outcome.INCONCLUSIVE


def decide(
    sample: Callable[[], float], rule: Rule, *, affordable: Callable[[int, Outcome], bool] = lambda *_: True
) -> SpeedVerdict:
    """Measure log-ratios with ``sample`` until a look has a decision and the precision that the rule requires.

    ``affordable(n, outcome)`` returns whether there is time for ``n`` more quads. It is called before each look except
    the first, with the outcome so far: after a decision, more quads serve only the precision.
    """
    log_ratios = [sample() for _ in range(rule.looks[0])]
    verdict = _evaluated(log_ratios, rule)
    for look in rule.looks[1:]:
        additional = look - len(log_ratios)
        decided = verdict.outcome is not Outcome.INCONCLUSIVE
        if decided and verdict.interval.half_width <= rule.precision:
            break
        if not affordable(additional, verdict.outcome):
            return verdict if decided else replace(verdict, reasons=(f"{verdict.reasons[0]}, at the time limit",))
        log_ratios += [sample() for _ in range(additional)]
        verdict = _evaluated(log_ratios, rule)
    return verdict


def _evaluated(log_ratios: list[float], rule: Rule) -> SpeedVerdict:
    return _judged(median_interval(log_ratios, rule.confidence), rule)


def _judged(interval: Interval, rule: Rule) -> SpeedVerdict:
    outcome = judge(interval, rule)
    undecided = (f"undecided after {interval.quads} quads",)
    return SpeedVerdict(outcome, interval, rule, undecided if outcome is Outcome.INCONCLUSIVE else ())


def doubts(interval: Interval, *, spread: float, ceiling: float | None) -> tuple[str, ...]:
    """Return the reasons not to trust a measurement, whatever its outcome; empty for a sound one.

    ``spread`` is the ratio of the 90th to the 10th percentile of the block times of one arm, which is one of the two
    implementations. ``ceiling`` is the speedup that the hardware allows, if known. A larger speedup shows that the
    clock did not wait for the kernels, or that the float32 arm did not do the same work.
    """
    reasons = []
    if spread > LARGEST_SPREAD:
        reasons.append(f"the times of one arm vary by a factor of {spread:.2f}, above {LARGEST_SPREAD}")
    if ceiling is not None and interval.median > CEILING_SLACK * ceiling:
        allowed = f"{CEILING_SLACK} times the {ceiling:.3g} that the device allows (ceiling= sets another)"
        reasons.append(f"a speedup of {interval.median:.3g} is above {allowed}")
    return tuple(reasons)


def doubted(verdict: SpeedVerdict, reasons: tuple[str, ...]) -> SpeedVerdict:
    """Return ``verdict``, with the outcome replaced by INCONCLUSIVE if there are ``reasons`` for doubt."""
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, reasons=reasons) if reasons else verdict


def combined(first: SpeedVerdict, second: SpeedVerdict) -> SpeedVerdict:
    """Combine a measurement with a second one: FAIL if both fail, INCONCLUSIVE if one does.

    If neither fails, the second one is the result. This occurs if the measurement was repeated for another reason: an
    arm took longer than in the baseline.
    """
    failed = [verdict.outcome is Outcome.FAIL for verdict in (first, second)]
    if all(failed):
        return replace(second, unconfirmed=first.interval)
    if not any(failed):
        return second
    reason = f"a first measurement failed at {first.interval}, a second did not"
    if not failed[0]:
        reason = f"a second measurement failed, and the first, at {first.interval}, did not"
    return replace(second, outcome=Outcome.INCONCLUSIVE, reasons=(reason, *second.reasons), unconfirmed=first.interval)


def with_floor(verdict: SpeedVerdict, floor: float) -> SpeedVerdict:
    """Return the verdict of the same measurements if the floor were ``floor``."""
    rule = replace(verdict.rule, floor=floor)
    last = _judged(verdict.interval, rule)
    return last if verdict.unconfirmed is None else combined(_judged(verdict.unconfirmed, rule), last)


def hull(first: Interval, second: Interval) -> Interval:
    """Return the smallest interval that encloses both, with the median of the second."""
    return replace(second, low=min(first.low, second.low), high=max(first.high, second.high))
