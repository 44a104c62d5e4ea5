"""Baseline: one comparison for tests, for differences of two records and for floors of speedups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_amp.record import (
    ORDER,
    Baseline,
    Better,
    Kind,
    Observation,
    Record,
    Value,
    Verdict,
    difference,
    from_baseline,
)

HARDWARE: dict[str, Value] = {"seed": 0, "devices": {"cpu": {"machine": "x86_64"}}}
OTHER: dict[str, Value] = {"seed": 0, "devices": {"cpu": {"machine": "aarch64"}}}
KEY = "rules/cpu/bf16/"


def observation(name: str, value: Value) -> Observation:
    return Observation(KEY + name, Kind.COUNT, value, test="test_it::test_it")


def ratio(value: float, better: Better | None = Better.HIGHER) -> Observation:
    return replace(observation("speedup", value), kind=Kind.RATIO, better=better, margin=0.1)


def test_verdicts_of_a_run_match_a_difference_of_its_record() -> None:
    old = Record((observation("same", 1), observation("fact", 1), observation("gone", 1), ratio(2.0)), HARDWARE)
    result = (observation("same", 1), observation("fact", 2), observation("new", 1), ratio(1.0))
    baseline = Baseline(old, HARDWARE)
    ran = {"cpu-bf16 rules": ("test_it::test_it",)}
    run = Record(tuple(map(baseline.compare, result)), HARDWARE, ran=ran)
    from_run = from_baseline(baseline, run, [old.observations[2]])
    from_records = difference(old, Record(result, HARDWARE, ran=ran))
    verdicts = [
        {observation.key: observation.verdict for observation in either.observations}
        for either in (from_run, from_records)
    ]
    assert verdicts[0] == verdicts[1]
    assert set(verdicts[0].values()) == {Verdict.CHANGED, Verdict.GONE, Verdict.NEW, Verdict.REGRESSED}
    assert (from_run.same, from_run.unjudged) == (from_records.same, from_records.unjudged) == (1, 0)
    assert [verdict for verdict, group in from_run.groups().items() if group] == [
        verdict for verdict in ORDER if verdict in verdicts[0].values()
    ]


def test_value_on_other_hardware_is_inconclusive_and_no_standard() -> None:
    old = Record((ratio(2.0),), HARDWARE)
    same, other = Baseline(old, HARDWARE), Baseline(old, OTHER)
    assert same.compare(ratio(1.0)).verdict is Verdict.REGRESSED
    assert other.compare(ratio(1.0)).verdict is Verdict.INCONCLUSIVE
    assert same.standard(f"{KEY}speedup") == ratio(2.0)
    assert other.standard(f"{KEY}speedup") is None
    assert other.unfair("cpu") == "cpu: machine x86_64 before, aarch64 now"


@pytest.mark.parametrize("better", [None, Better.HIGHER])
def test_value_that_was_not_judged_is_no_standard(better: Better | None) -> None:
    baseline = Baseline(Record((ratio(2.0, better),), HARDWARE), HARDWARE)
    assert (baseline.standard(f"{KEY}speedup") is None) == (better is None)
    assert baseline.standard(f"{KEY}nothing") is None


def test_provenance_noted_after_reading_the_baseline_is_compared() -> None:
    now: dict[str, Value] = {}
    baseline = Baseline(Record((ratio(2.0),), {**HARDWARE, "revisions": {"rules": "1"}}), now)
    now |= {**HARDWARE, "revisions": {"rules": "2"}}
    assert baseline.unfair("cpu") is None
    assert baseline.revised == {"rules": ("1", "2")}
