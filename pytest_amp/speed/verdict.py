"""The decision whether a measured speedup keeps its floor.

Pure arithmetic on log-ratios: no torch, no clock, no pytest. A measurement is a series of quads, each
one ratio (see paired.py); they are looked at after 12, 24 and 48, and the first decisive look ends it.
"""

from __future__ import annotations

import enum
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

#: How far eager step times of a healthy machine may differ from one process to the next.
EAGER_MARGIN = 1.03
#: The same for a captured step that is replayed: H100 and H200, torch 2.11, between processes 0.1 to 0.2 %.
DEVICE_MARGIN = 1.005
CONFIDENCE = Fraction(99, 100)
LOOKS = (12, 24, 48)
#: Half the width of an interval, as a part of it, that needs no further look once it has decided: another process's
#: speedup may be held against it.
PRECISE = 0.002
#: A block's 90th percentile over its 10th above which nothing is decided: the machine was busy elsewhere.
LARGEST_SPREAD = 1.5
#: How far above the ceiling of the card a measured speedup may lie before the measurement is in doubt.
CEILING_SLACK = 1.1


class Outcome(enum.Enum):
    """What a measurement says about a floor."""

    PASS = "pass"  # noqa: S105  # not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Rule:
    """What is demanded: a speedup of at least ``floor``, up to ``margin``, both factors above 0.

    ``confidence`` is that of the interval at each look, two-sided; ``looks`` are numbers of quads. ``precision`` is
    half the width of an interval, as a part of it, that a decided measurement ends with where there is time.
    """

    floor: float
    margin: float = EAGER_MARGIN
    confidence: Fraction = CONFIDENCE
    looks: tuple[int, ...] = LOOKS
    precision: float = math.inf


@dataclass(frozen=True)
class Interval:
    """A speedup: the median over ``quads`` quads, and the interval in which the true median lies."""

    low: float
    median: float
    high: float
    quads: int

    @property
    def half_width(self) -> float:
        """Half the interval, as a part of it."""
        return (self.high / self.low - 1) / 2 if self.low > 0 else math.inf

    def __str__(self) -> str:
        """As reports show it: ``1.57 [1.56, 1.58]``."""
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class SpeedVerdict:
    """The outcome, the interval that it rests on, and why it is no better.

    ``reasons`` are empty for a pass. ``unconfirmed`` is the interval of a first measurement that failed,
    when ``interval`` is that of the second.
    """

    outcome: Outcome
    interval: Interval
    rule: Rule
    reasons: tuple[str, ...] = field(default=())
    unconfirmed: Interval | None = None


@functools.cache
def order_statistic_rank(count: int, confidence: Fraction = CONFIDENCE) -> int:
    """The largest k for which the k-th smallest and k-th largest of ``count`` values enclose the median.

    With at least ``confidence``, whatever the distribution: the number of values below the median is
    binomial with p = 1/2 (the sign test's interval; H. A. David, H. N. Nagaraja, Order Statistics,
    7.1). Integers throughout, so the same everywhere. 0 where ``count`` is too small.
    """
    tail = 0
    for rank in range(count // 2 + 1):
        tail += math.comb(count, rank)
        if 2 * tail > (1 - confidence) * 2**count:
            return rank
    return count // 2


def median_interval(log_ratios: Sequence[float], confidence: Fraction = CONFIDENCE) -> Interval:
    """The median of the ratios and its order-statistic interval; unbounded where there are too few.

    Raises ValueError for no values, or for one that is not finite.
    """
    if not log_ratios or not all(map(math.isfinite, log_ratios)):
        raise ValueError(f"{len(log_ratios)} log-ratios, some of them not finite")
    ordered = sorted(log_ratios)
    rank = order_statistic_rank(len(ordered), confidence)
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (-math.inf, math.inf)
    return Interval(math.exp(low), math.exp(statistics.median(ordered)), math.exp(high), len(ordered))


def judge(interval: Interval, rule: Rule) -> Outcome:
    """What one look says. Only the last one lets a median above the floor pass, within the margin."""
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
    """Draw log-ratios from ``sample`` until a look is decisive, and as precise as the rule wants it.

    ``affordable(n, outcome)`` is asked before ``n`` further quads are drawn for the second look and later ones, with
    the outcome so far: what is decided is to become precise only.
    """
    log_ratios = [sample() for _ in range(rule.looks[0])]
    verdict = _look(log_ratios, rule)
    for look in rule.looks[1:]:
        further = look - len(log_ratios)
        decided = verdict.outcome is not Outcome.INCONCLUSIVE
        if decided and verdict.interval.half_width <= rule.precision:
            break
        if not affordable(further, verdict.outcome):
            return verdict if decided else replace(verdict, reasons=(f"{verdict.reasons[0]}, when the time was up",))
        log_ratios += [sample() for _ in range(further)]
        verdict = _look(log_ratios, rule)
    return verdict


def _look(log_ratios: list[float], rule: Rule) -> SpeedVerdict:
    interval = median_interval(log_ratios, rule.confidence)
    outcome = judge(interval, rule)
    undecided = (f"undecided after {interval.quads} quads",)
    return SpeedVerdict(outcome, interval, rule, undecided if outcome is Outcome.INCONCLUSIVE else ())


def doubts(interval: Interval, *, spread: float, ceiling: float | None) -> tuple[str, ...]:
    """Why a measurement cannot be trusted, whatever it says; empty for a sound one.

    ``spread`` is the 90th percentile of an arm's blocks over the 10th, ``ceiling`` the speedup that the
    hardware allows, if known: above it, work was not waited for, or the float32 side was not what it
    should be.
    """
    found = []
    if spread > LARGEST_SPREAD:
        found.append(f"the times of one arm vary by a factor of {spread:.2f}, above {LARGEST_SPREAD}")
    if ceiling is not None and interval.median > CEILING_SLACK * ceiling:
        allowed = f"{CEILING_SLACK} times the {ceiling:.3g} that the device allows (ceiling= sets another)"
        found.append(f"a speedup of {interval.median:.3g} is above {allowed}")
    return tuple(found)


def doubted(verdict: SpeedVerdict, reasons: tuple[str, ...]) -> SpeedVerdict:
    """``verdict``, INCONCLUSIVE where there are ``reasons`` for doubt: never red, and never green."""
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, reasons=reasons) if reasons else verdict


def confirmed(first: SpeedVerdict, second: SpeedVerdict) -> SpeedVerdict:
    """What two measurements say of which the first failed: a failure only if the second fails, too."""
    if second.outcome is Outcome.FAIL:
        return replace(second, unconfirmed=first.interval)
    reasons = (f"a first measurement failed at {first.interval}, a second did not", *second.reasons)
    return replace(second, outcome=Outcome.INCONCLUSIVE, reasons=reasons, unconfirmed=first.interval)
