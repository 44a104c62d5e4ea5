"""The decision whether a measured speedup reaches its floor.

The module is arithmetic on log-ratios, without torch, clocks or pytest. A measurement is a series of quads with one
ratio each (see paired.py); it is evaluated after 12, 24 and 48 quads, and the first decisive look ends it.
"""

from __future__ import annotations

import enum
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

#: The factor by which eager step times of a healthy machine may differ between processes.
EAGER_MARGIN = 1.03
#: The same for a captured step that is replayed: 0.1 to 0.2 % between processes on H100 and H200, torch 2.11.
DEVICE_MARGIN = 1.005
CONFIDENCE = Fraction(99, 100)
LOOKS = (12, 24, 48)
#: The relative half width of an interval that needs no further look once it is decided: another process's speedup may
#: be compared with it.
PRECISE = 0.002
#: The 90th percentile of blocks over the 10th above which nothing is decided: the machine had other work.
LARGEST_SPREAD = 1.5
#: The factor by which a measured speedup may exceed the card's ceiling before the measurement is in doubt.
CEILING_SLACK = 1.1


class Outcome(enum.Enum):
    """Outcome of a measurement with respect to a floor."""

    PASS = "pass"  # noqa: S105  # not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Rule:
    """Requirement of a speedup of at least ``floor``, up to ``margin``, both factors above 0.

    ``confidence`` is the two-sided confidence of the interval at each look; ``looks`` are numbers of quads.
    ``precision`` is the relative half width of the interval at which a decided measurement ends, if there is time.
    """

    floor: float
    margin: float = EAGER_MARGIN
    confidence: Fraction = CONFIDENCE
    looks: tuple[int, ...] = LOOKS
    precision: float = math.inf


@dataclass(frozen=True)
class Interval:
    """A speedup: the median over ``quads`` quads, and a confidence interval of the true median."""

    low: float
    median: float
    high: float
    quads: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval, relative to the speedup."""
        return (self.high / self.low - 1) / 2 if self.low > 0 else math.inf

    def __str__(self) -> str:
        """Return the text of reports: ``1.57 [1.56, 1.58]``."""
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class SpeedVerdict:
    """An outcome, the interval that it is based on, and the reasons if it is not a pass.

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
    """Return the largest k for which the k-th smallest and k-th largest of ``count`` values enclose the median.

    They do with at least ``confidence``, for any distribution: the number of values below the median is
    binomial with p = 1/2 (the sign test's interval; H. A. David, H. N. Nagaraja, Order Statistics,
    7.1). Integer arithmetic makes it the same on every machine. The result is 0 if ``count`` is too small.
    """
    tail = 0
    for rank in range(count // 2 + 1):
        tail += math.comb(count, rank)
        if 2 * tail > (1 - confidence) * 2**count:
            return rank
    return count // 2


def median_interval(log_ratios: Sequence[float], confidence: Fraction = CONFIDENCE) -> Interval:
    """Return the median of the ratios and its order-statistic interval, which is unbounded for too few ratios.

    Raises ValueError for no values, or for one that is not finite.
    """
    if not log_ratios or not all(map(math.isfinite, log_ratios)):
        raise ValueError(f"{len(log_ratios)} log-ratios, some of them not finite")
    ordered = sorted(log_ratios)
    rank = order_statistic_rank(len(ordered), confidence)
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (-math.inf, math.inf)
    return Interval(math.exp(low), math.exp(statistics.median(ordered)), math.exp(high), len(ordered))


def judge(interval: Interval, rule: Rule) -> Outcome:
    """Return the outcome of one look. Only at the last look a median above the floor passes, within the margin."""
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
    """Draw log-ratios from ``sample`` until a look is decisive, and as precise as the rule requires.

    ``affordable(n, outcome)`` is called before ``n`` further quads are drawn for the second look and later ones, with
    the outcome so far: a decided measurement continues only for precision.
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
    """Return the reasons not to trust a measurement, whatever its outcome; empty for a sound one.

    ``spread`` is the 90th percentile of an arm's blocks over the 10th, ``ceiling`` the speedup that the hardware
    allows, if known: above it, the clock did not wait for the work, or the float32 arm did not compute what it should.
    """
    reasons = []
    if spread > LARGEST_SPREAD:
        reasons.append(f"the times of one arm vary by a factor of {spread:.2f}, above {LARGEST_SPREAD}")
    if ceiling is not None and interval.median > CEILING_SLACK * ceiling:
        allowed = f"{CEILING_SLACK} times the {ceiling:.3g} that the device allows (ceiling= sets another)"
        reasons.append(f"a speedup of {interval.median:.3g} is above {allowed}")
    return tuple(reasons)


def doubted(verdict: SpeedVerdict, reasons: tuple[str, ...]) -> SpeedVerdict:
    """Return ``verdict``, INCONCLUSIVE if there are ``reasons`` for doubt: neither a failure nor a pass."""
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, reasons=reasons) if reasons else verdict


def confirmed(first: SpeedVerdict, second: SpeedVerdict) -> SpeedVerdict:
    """Combine a failed measurement with a second one: a failure only if the second fails, too."""
    if second.outcome is Outcome.FAIL:
        return replace(second, unconfirmed=first.interval)
    reasons = (f"a first measurement failed at {first.interval}, a second did not", *second.reasons)
    return replace(second, outcome=Outcome.INCONCLUSIVE, reasons=reasons, unconfirmed=first.interval)
