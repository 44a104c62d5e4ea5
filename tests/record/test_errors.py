"""Errors over seeds: a loss of precision is detected, another draw of the same rounding is not."""

from __future__ import annotations

import math
import random

import pytest

from pytest_amp.record import Kind, Observation, Record, Verdict, compare, difference, errors, moved
from pytest_amp.report.differences import as_text

KEY = "gradients/cpu/bf16/mlp/0.weight"


def error(value: float, *further: float, allowed: float | None = None) -> Observation:
    return Observation(KEY, Kind.ERROR, value, "relative L2", allowed, over_seeds=further or None)


def verdict(now: Observation, before: Observation) -> Verdict:
    actual = compare(now, before).verdict
    turned = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.REGRESSED}
    assert compare(before, now).verdict is turned.get(actual, actual), "the other way about it is the other way about"
    return actual


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        # Seed 0 alone calls it 1.8 times worse: a kernel rounds elsewhere, and is better overall.
        ((0.0050, 0.0060, 0.0141), (0.0090, 0.0076, 0.0088), Verdict.PASS),
        # One more rounding of the same size, of a tensor whose error is well known: sqrt(2).
        ((0.00200, 0.00202, 0.00198), (0.00283, 0.00285, 0.00281), Verdict.REGRESSED),
        # A smaller change is not reported, however close the draws lie.
        ((0.00200, 0.00200, 0.00200), (0.00258, 0.00258, 0.00258), Verdict.PASS),
        # Twice, with a spread over seeds of half of it that both share.
        ((0.0020, 0.0026, 0.0032), (0.0040, 0.0052, 0.0064), Verdict.REGRESSED),
        # Half as much again, where seeds differ by a factor of two: the spread explains it.
        ((0.0020, 0.0030, 0.0045), (0.0030, 0.0045, 0.0067), Verdict.PASS),
        # Every seed shows about the same change: 0.55 more of the logarithm, a range of 0.2.
        ((0.00200, 0.00200, 0.00200), (0.00314, 0.00347, 0.00383), Verdict.REGRESSED),
        # The mean counts: a seed that changed less does not hide it, and one that changed more does not decide.
        ((0.00200, 0.00200, 0.00200), (0.00450, 0.00333, 0.00450), Verdict.REGRESSED),
        ((0.00200, 0.00200, 0.00200), (0.00330, 0.00492, 0.00330), Verdict.PASS),
        # The mean of two spreads over seeds, whichever is larger: 0.8 for 1.0 and 0.6, and the change is 0.9.
        ((0.00100, 0.00165, 0.00272), (0.00300, 0.00406, 0.00547), Verdict.REGRESSED),
        ((0.00100, 0.00135, 0.00182), (0.00201, 0.00332, 0.00547), Verdict.REGRESSED),
        # The single element of a loss may be right by chance.
        ((0.0001, 0.0030, 0.0012), (0.0040, 0.0020, 0.0035), Verdict.PASS),
    ],
)
def test_verdict_depends_on_the_spread_over_seeds(
    before: tuple[float, ...], now: tuple[float, ...], expected: Verdict
) -> None:
    assert verdict(error(*now), error(*before)) is expected


def test_seed_far_beyond_the_allowed_error_regresses() -> None:
    """Another derivative at a kink: two seeds are not affected."""
    before, now = error(0.0027, 0.0026, 0.0028, allowed=0.004), error(0.116, 0.0026, 0.0028, allowed=0.174)
    assert verdict(now, before) is Verdict.REGRESSED
    assert moved(now, before) == "43 times that, and more than 2 times what was allowed then"
    near = error(0.0079, 0.0026, 0.0028, allowed=0.174)
    assert verdict(near, before) is Verdict.PASS
    assert verdict(error(0.0085, 0.0026, 0.0028, allowed=0.174), before) is Verdict.REGRESSED


def test_unchanged_known_fault_passes() -> None:
    """Known faults are beyond the allowed error on both sides."""
    before, now = error(0.5, 0.4, 0.6, allowed=0.004), error(0.51, 0.4, 0.6, allowed=0.004)
    assert verdict(now, before) is Verdict.PASS


def test_negligible_errors_pass() -> None:
    before, now = error(1e-8, 1e-8, 1e-8, allowed=1e-3), error(4e-5, 4e-5, 4e-5, allowed=1e-3)
    assert verdict(now, before) is Verdict.PASS
    assert verdict(error(7e-5, 7e-5, 7e-5, allowed=1e-3), before) is Verdict.REGRESSED
    assert verdict(error(1e-8, 1e-8, 1e-8), error(0.0, 0.0, 0.0)) is Verdict.REGRESSED
    assert verdict(error(0.0, 0.0, 0.0), error(0.0, 0.0, 0.0)) is Verdict.PASS


@pytest.mark.parametrize("further", [(), (0.002,)], ids=["one seed", "fewer seeds"])
def test_fixed_ratio_decides_without_the_same_seeds(further: tuple[float, ...]) -> None:
    before = error(0.0050, *further)
    now = error(0.0090, 0.0076, 0.0088)
    assert verdict(now, before) is Verdict.REGRESSED
    assert moved(now, before) == "1.8 times that; allowed 1.5 times"
    assert verdict(error(0.0074, 0.0076, 0.0088), before) is Verdict.PASS


def test_non_finite_error_is_compared_exactly() -> None:
    nan = math.nan
    assert verdict(error(nan, 1.0, 1.0), error(nan, 1.0, 1.0)) is Verdict.PASS
    assert verdict(error(nan, 1.0, 1.0), error(1.0, 1.0, 1.0)) is Verdict.CHANGED


def test_growth_beyond_the_float_range_stays_finite() -> None:
    factor, _ = errors.growth([1e-300] * 3, [1e10] * 3)
    assert 1e300 < factor < math.inf


def test_message_names_the_factor_within_the_spread() -> None:
    before, now = error(0.002, 0.00202, 0.00198), error(0.004, 0.00404, 0.00396)
    assert moved(now, before) == "2 times that over 3 seeds; 1.3 times are within their spread"


def test_text_notes_a_record_of_one_seed() -> None:
    old, new = Record((error(0.005),)), Record((error(0.005, 0.006, 0.007),))
    note = "errors in the old record are of one seed: a fixed ratio of 1.5 decides, whatever their spread"
    assert note in as_text(difference(old, new))
    assert "of one seed" not in as_text(difference(new, new))
    exact = Record((Observation("rules/cpu/bf16/x", Kind.RULE, "fp32"),))
    assert "of one seed" not in as_text(difference(exact, exact))


def drawn(source: random.Random, spread: float, shared: list[float]) -> list[float]:
    return [math.exp(size + source.gauss(0, spread)) for size in shared]


@pytest.mark.parametrize(
    ("spread", "over_seeds", "most"),
    [(0.05, 0.15, 0.0), (0.1, 0.15, 0.001), (0.2, 0.2, 0.004), (1.0, 1.0, 0.006)],
)
def test_regressions_by_chance_alone_are_rare(spread: float, over_seeds: float, most: float) -> None:
    """Draw errors with normal logarithms: the part common to the seeds cancels, and rounding is drawn again."""
    source, count, runs = random.Random(0), 0, 4000  # noqa: S311  # no secrets
    for _ in range(runs):
        shared = [source.gauss(0, over_seeds) for _ in range(errors.DRAWS)]
        factor, most_by_chance = errors.growth(drawn(source, spread, shared), drawn(source, spread, shared))
        count += factor > most_by_chance
    assert count <= most * runs
    assert spread < 1.0 or count, "nothing is ever called worse"
