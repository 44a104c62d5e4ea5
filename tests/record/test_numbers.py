"""Values with a known good direction are compared by a margin, and by both intervals if there are two."""

from __future__ import annotations

import math

import pytest

from pytest_amp.record import Better, Kind, Observation, Value, Verdict, compare, judged
from pytest_amp.record.compare import MARGINS

KEY = "project/cpu/bf16/x"
Interval = tuple[float, float]


def number(
    value: Value,
    interval: Interval | None = None,
    better: Better = Better.LOWER,
    kind: Kind = Kind.MEASURE,
    margin: float | None = None,
) -> Observation:
    return Observation(KEY, kind, value, interval=interval, better=better, margin=margin)


@pytest.mark.parametrize(
    ("before", "now", "becomes"),
    [
        (100, 100, Verdict.PASS),
        (100, 105, Verdict.PASS),
        (100, 106, Verdict.REGRESSED),
        (100, 95, Verdict.PASS),
        (100, 94, Verdict.IMPROVED),
        (0, 0, Verdict.PASS),
        (0, 1e-9, Verdict.REGRESSED),
        (-100, -106, Verdict.IMPROVED),
        (-100, -94, Verdict.REGRESSED),
        (-1, 1, Verdict.REGRESSED),
        (100, "inf", Verdict.CHANGED),
        (math.inf, "inf", Verdict.PASS),
    ],
)
def test_values_without_intervals_are_compared_by_the_margin(before: Value, now: Value, becomes: Verdict) -> None:
    assert compare(number(now), number(before)).verdict is becomes
    other = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.REGRESSED}.get(becomes, becomes)
    actual = compare(number(now, better=Better.HIGHER), number(before, better=Better.HIGHER))
    assert actual.verdict is other
    assert actual.baseline == before
    if becomes in (Verdict.REGRESSED, Verdict.IMPROVED):
        assert compare(number(now), number(before), fair=False).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("before", "now", "becomes"),
    [
        ((1.56, 1.58), (1.55, 1.59), Verdict.PASS),
        ((1.56, 1.58), (1.40, 1.46), Verdict.REGRESSED),  # 1.46 is below 0.94 times 1.56
        ((1.56, 1.58), (1.40, 1.47), Verdict.INCONCLUSIVE),  # 1.47 is not, and 1.40 is below 0.94 times 1.58
        ((1.56, 1.58), (1.68, 1.70), Verdict.IMPROVED),
        ((1.30, 1.80), (1.31, 1.80), Verdict.INCONCLUSIVE),  # without information
        ((1.30, 1.80), (1.30, 1.80), Verdict.PASS),  # a record and itself
        ((1.56, 1.58), (0.0, math.inf), Verdict.INCONCLUSIVE),
        ((0.0, math.inf), (1.56, 1.58), Verdict.INCONCLUSIVE),
    ],
)
def test_speedups_are_compared_by_both_intervals(before: Interval, now: Interval, becomes: Verdict) -> None:
    old, new = (number(1.5, ends, Better.HIGHER, Kind.RATIO) for ends in (before, now))
    assert compare(new, old).verdict is becomes


def test_comparison_with_an_unjudged_speedup_is_inconclusive() -> None:
    """Unjudged speedups, in doubt or of a report, are recorded without a direction."""
    now, doubtful = number(1.5, (1.49, 1.51), Better.HIGHER, Kind.RATIO), Observation(KEY, Kind.RATIO, 1.5)
    assert compare(now, doubtful).verdict is Verdict.INCONCLUSIVE
    assert compare(doubtful, now).verdict is Verdict.PASS


def test_memory_has_a_small_margin() -> None:
    old = number(10_000_000, kind=Kind.BYTES)
    assert MARGINS[Kind.BYTES] == 0.02
    assert compare(number(10_190_000, kind=Kind.BYTES), old).verdict is Verdict.PASS
    assert compare(number(10_210_000, kind=Kind.BYTES), old).verdict is Verdict.REGRESSED


def test_margin_of_an_observation_replaces_the_default() -> None:
    assert compare(number(149, margin=0.5), number(100)).verdict is Verdict.PASS
    assert compare(number(101, margin=0.0), number(100)).verdict is Verdict.REGRESSED


def test_error_is_compared_with_its_interval_over_seeds() -> None:
    """Only an error beyond the worst seed has grown, and only one below the best seed has improved."""
    old = Observation(KEY, Kind.ERROR, 0.010, interval=(0.008, 0.020))
    assert compare(Observation(KEY, Kind.ERROR, 0.025), old).verdict is Verdict.PASS
    assert compare(Observation(KEY, Kind.ERROR, 0.031), old).verdict is Verdict.REGRESSED
    assert compare(Observation(KEY, Kind.ERROR, 0.031, interval=(0.02, 0.04)), old).verdict is Verdict.PASS
    assert compare(Observation(KEY, Kind.ERROR, 0.005), old).verdict is Verdict.IMPROVED
    assert compare(Observation(KEY, Kind.ERROR, 0.006), old).verdict is Verdict.PASS
    assert compare(Observation(KEY, Kind.ERROR, 0.004, interval=(0.003, 0.006)), old).verdict is Verdict.PASS


def test_constant_value_is_exact_on_any_machine() -> None:
    same, other = (Observation(KEY, Kind.MEASURE, value, better=Better.SAME) for value in ("a", "b"))
    assert compare(same, same, fair=False).verdict is Verdict.PASS
    assert compare(other, same, fair=False).verdict is Verdict.CHANGED


def test_sizes_and_ratios_are_judged_only_with_a_direction() -> None:
    assert [kind for kind in Kind if judged(Observation(KEY, kind, 1))] == [
        *(Kind.RULE, Kind.DTYPE, Kind.COUNT, Kind.STATE, Kind.ERROR)
    ]
    assert judged(number(1, kind=Kind.RATIO))
