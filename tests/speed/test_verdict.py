"""Decision rule: exact if possible, simulated otherwise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from pytest_amp.speed.verdict import (
    EAGER_MARGIN,
    Interval,
    Outcome,
    Rule,
    SpeedVerdict,
    combined,
    decide,
    doubted,
    doubts,
    judge,
    median_interval,
    order_statistic_rank,
)

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("count", "rank"), [(7, 0), (8, 1), (12, 2), (24, 6), (48, 15)])
def test_rank_at_99_percent_has_known_values(count: int, rank: int) -> None:
    assert order_statistic_rank(count) == rank


@pytest.mark.parametrize("confidence", [Fraction(9, 10), Fraction(1, 2)], ids=str)  # two values are exactly a half
@pytest.mark.parametrize("count", range(1, 13))
def test_rank_covers_the_median_and_no_higher_rank_does(count: int, confidence: Fraction) -> None:

    def coverage(rank: int) -> Fraction:
        """Return the share of all positions of values below (0) and above (1) the median that enclose it."""
        signs = list(itertools.product((0, 1), repeat=count))
        return Fraction(sum(rank <= sum(s) <= count - rank for s in signs), len(signs))

    rank = order_statistic_rank(count, confidence)
    assert rank == 0 or coverage(rank) >= confidence
    assert 2 * (rank + 1) > count + 1 or coverage(rank + 1) < confidence


def test_interval_consists_of_order_statistics() -> None:
    ratios = [1.0 + n / 100 for n in range(12)]
    shuffled = [math.log(ratios[n * 5 % 12]) for n in range(12)]
    actual = median_interval(shuffled)
    assert actual.quads == 12
    assert [actual.low, actual.median, actual.high] == pytest.approx([1.01, math.sqrt(1.05 * 1.06), 1.10])


def test_interval_of_too_few_values_is_unbounded() -> None:
    assert median_interval([0.0] * 7) == Interval(0.0, 1.0, math.inf, 7)


def test_half_width_is_relative_to_the_median() -> None:
    assert Interval(1.98, 2.0, 2.0196, 12).half_width == pytest.approx(0.01)
    assert Interval(0.0, 1.0, math.inf, 7).half_width == math.inf


@pytest.mark.parametrize("values", [[], [math.nan] * 12, [math.inf, 0.0]])
def test_interval_of_no_numbers_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="log-ratios"):
        median_interval(values)


@pytest.mark.parametrize(
    ("interval", "outcome"),
    [
        (Interval(1.00, 1.2, 1.3, 12), PASS),
        (Interval(0.99, 1.2, 1.3, 12), INCONCLUSIVE),
        (Interval(0.99, 1.2, 1.3, 24), INCONCLUSIVE),
        (Interval(0.99, 1.2, 1.3, 48), PASS),
        (Interval(0.96, 1.2, 1.3, 48), INCONCLUSIVE),
        (Interval(0.99, 0.999, 1.3, 48), INCONCLUSIVE),
        (Interval(0.90, 0.95, 0.98, 48), INCONCLUSIVE),
        (Interval(0.90, 0.95, 0.97, 12), FAIL),
        (Interval(0.10, 0.11, 0.12, 48), FAIL),
    ],
)
def test_interval_is_judged_by_floor_and_margin(interval: Interval, outcome: Outcome) -> None:
    assert judge(interval, Rule(1.0)) is outcome


def test_finer_margin_decides_sooner() -> None:
    interval = Interval(0.90, 0.95, 0.99, 12)
    assert judge(interval, Rule(1.0, margin=1.005)) is FAIL
    assert judge(interval, Rule(1.0, margin=EAGER_MARGIN)) is INCONCLUSIVE


def drawn(ratios: list[float]) -> tuple[Callable[[], float], list[float]]:
    log_ratios = [math.log(ratio) for ratio in ratios]
    return lambda: log_ratios.pop(0), log_ratios


@pytest.mark.parametrize(("ratio", "outcome"), [(1.1, PASS), (0.9, FAIL)])
def test_first_look_ends_a_clear_case(ratio: float, outcome: Outcome) -> None:
    sample, left = drawn([ratio] * 48)
    verdict = decide(sample, Rule(1.0))
    assert (verdict.outcome, verdict.interval.quads, len(left), verdict.reasons) == (outcome, 12, 36, ())


def test_wide_decisive_interval_is_narrowed_within_the_budget() -> None:
    """Another process's speedup may be compared with it."""
    ratios = [1.19, 1.21] * 6 + [1.2] * 36
    sample, left = drawn(ratios)
    verdict = decide(sample, Rule(1.0, precision=0.002))
    assert (verdict.outcome, verdict.interval.quads, len(left)) == (PASS, 48, 0)
    assert verdict.interval.half_width == 0
    sample, left = drawn(ratios)
    verdict = decide(sample, Rule(1.0, precision=0.002), affordable=lambda further, _: further < 24)
    assert (verdict.outcome, verdict.interval.quads, verdict.reasons) == (PASS, 24, ())
    sample, left = drawn(ratios)
    assert decide(sample, Rule(1.0, precision=0.02)).interval.quads == 12


def test_looks_continue_until_one_is_decisive() -> None:
    noisy = [0.5, 1.5] * 6 + [1.1] * 12
    sample, left = drawn(noisy + [1.1] * 24)
    verdict = decide(sample, Rule(1.0))
    assert (verdict.outcome, verdict.interval.quads, len(left)) == (PASS, 48, 0)


def test_undecided_looks_are_inconclusive() -> None:
    sample, left = drawn([0.8, 1.2] * 24)
    verdict = decide(sample, Rule(1.0))
    assert (verdict.outcome, left) == (INCONCLUSIVE, [])
    assert verdict.reasons == ("undecided after 48 quads",)


def test_unaffordable_look_is_not_started() -> None:
    looks = []

    def affordable(further: int, outcome: Outcome) -> bool:
        looks.append((further, outcome))
        return further < 24

    sample, left = drawn([0.8, 1.2] * 24)
    verdict = decide(sample, Rule(1.0), affordable=affordable)
    assert (verdict.outcome, looks, len(left)) == (INCONCLUSIVE, [(12, INCONCLUSIVE), (24, INCONCLUSIVE)], 24)
    assert verdict.reasons == ("undecided after 24 quads, at the time limit",)


def test_doubts_name_spread_and_ceiling() -> None:
    interval = Interval(2.0, 2.1, 2.2, 12)
    assert doubts(interval, spread=1.5, ceiling=None) == ()
    assert doubts(interval, spread=1.5, ceiling=2.0) == ()
    assert "vary by a factor of 1.60" in doubts(interval, spread=1.6, ceiling=2.0)[0]
    assert "above 1.1 times the 1.5" in doubts(interval, spread=1.0, ceiling=1.5)[0]
    assert doubts(interval, spread=1.0, ceiling=1.9)  # its median: 2.1 is above 2.09, and its lower end is not
    assert len(doubts(interval, spread=9.0, ceiling=1.0)) == 2


@pytest.mark.parametrize("outcome", [PASS, FAIL])
def test_doubt_makes_a_verdict_inconclusive(outcome: Outcome) -> None:
    verdict = SpeedVerdict(outcome, Interval(1, 1, 1, 12), Rule(1.0))
    assert doubted(verdict, ()) is verdict
    assert doubted(verdict, ("shaky",)) == SpeedVerdict(INCONCLUSIVE, verdict.interval, verdict.rule, ("shaky",))


@pytest.mark.parametrize(("second", "outcome"), [(FAIL, FAIL), (PASS, INCONCLUSIVE), (INCONCLUSIVE, INCONCLUSIVE)])
def test_failure_needs_confirmation(second: Outcome, outcome: Outcome) -> None:
    rule = Rule(1.0)
    first = SpeedVerdict(FAIL, Interval(0.7, 0.8, 0.9, 12), rule)
    both = combined(first, SpeedVerdict(second, Interval(0.8, 0.9, 1.0, 48), rule))
    assert (both.outcome, both.interval.quads, both.unconfirmed) == (outcome, 48, first.interval)
    assert bool(both.reasons) == (outcome is INCONCLUSIVE)
