"""Rows of a file: columns and digits."""

from __future__ import annotations

import json
from typing import Any

from pytest_amp.record import Better, Kind, Observation, Record, Verdict, parsed
from pytest_amp.record.file import dumps


def row(observation: Observation) -> list[Any]:
    (table,) = json.loads(dumps(Record((observation,))))["observations"]
    (actual,) = table["rows"]
    return list(actual)


def test_row_omits_defaults_and_excess_digits() -> None:
    """Omit empty verdicts; keep four digits of errors and ratios, eight of other values, all of exact kinds."""
    error = Observation("a/cpu/bf16/x", Kind.ERROR, 0.123456789012, allowed=1 / 3, over_seeds=(0.1, 1 / 7))
    assert row(error) == ["a/cpu/bf16/x", 0.1235, 0.3333, [0.1, 0.1429]]
    ratio = Observation("a/cpu/bf16/x", Kind.RATIO, 1.123456789012, interval=(1.0, 10 / 7))
    assert row(ratio) == ["a/cpu/bf16/x", 1.123, None, None, [1.0, 1.429]]
    measure = Observation("a/cpu/bf16/x", Kind.MEASURE, 12345.678901, better=Better.LOWER)
    assert row(measure) == ["a/cpu/bf16/x", 12345.679]
    exact = Observation("a/cpu/bf16/y", Kind.STATE, 0.123456789012, verdict=Verdict.NEW)
    assert row(exact) == ["a/cpu/bf16/y", 0.123456789012, None, None, None, None, "new"]
    same = Observation("a/cpu/bf16/z", Kind.MEASURE, 1 / 3, better=Better.SAME)
    assert row(same) == ["a/cpu/bf16/z", 1 / 3]
    nothing = Observation("a/cpu/bf16/z", Kind.STATE, None, baseline=1 / 3)
    assert row(nothing) == ["a/cpu/bf16/z", None, None, None, None, 1 / 3]


def test_interval_of_one_value_survives_a_round_trip() -> None:
    record = Record((Observation("a/cpu/bf16/x", Kind.ERROR, 0.5, interval=(0.5, 0.5)),))
    assert parsed(dumps(record)).observations == record.observations
