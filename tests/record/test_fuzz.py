"""Malformed files of any kind are reported in one line with their name; no other error is raised."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_amp.record import (
    Better,
    Failure,
    Kind,
    Observation,
    Record,
    RecordError,
    Verdict,
    difference,
    read_record,
    trend,
)
from pytest_amp.record.file import dumps
from pytest_amp.record.table import HEAD
from pytest_amp.report import differences as reports
from pytest_amp.report import trend as trends
from pytest_amp.report.html import of_difference, of_trend
from pytest_amp.report.record import as_text

RECORD = Record(
    (
        Observation("rules/cpu/bf16/x", Kind.RULE, "fp32", test="t::t"),
        Observation("gradients/cpu/bf16/y", Kind.ERROR, 0.5, "relative L2", 1.0, Verdict.IMPROVED, 0.9, "t::t"),
        Observation("gradients/cpu/fp16/y", Kind.ERROR, 0.5, "relative L2", 1.0, over_seeds=(0.4, 0.6)),
        Observation(
            "speed/cpu/bf16/z", Kind.RATIO, 1.5, "times", 1.2, interval=(1.4, 1.6), better=Better.HIGHER, margin=0.06
        ),
        Observation("scaler/cpu/bf16/scale", Kind.STATE, ["65536", "32768"], test="t::t"),
    ),
    {"torch": "2.13.0", "seed": 0, "devices": {"cpu": {"machine": "x86_64"}}},
    {"cpu-bf16 rules": {"passed": 2}},
    ran={"cpu-bf16 rules": ("t::t",)},
    failures=(Failure("rules/cpu/bf16/t::u", "AmpFailure: no"),),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _read(path: Any, data: bytes) -> None:
    """Read, compare and print any readable file: readers of reports must not meet a traceback, either."""
    path.write_bytes(data)
    problem, record = "", RECORD
    try:
        record = read_record(path)
    except RecordError as error:
        problem = str(error)
    assert len(problem.splitlines()) == (1 if problem else 0)
    assert problem.startswith(str(path)) or not problem
    assert as_text(record)
    for actual in (difference(RECORD, record), difference(record, RECORD)):
        assert reports.as_text(actual)
        assert reports.as_markdown(actual)
        assert json.loads(reports.as_json(actual))
        assert of_difference(actual).endswith("</html>\n")
    history = trend([RECORD, record, RECORD])
    assert trends.as_text(history)
    assert trends.as_markdown(history)
    assert json.loads(trends.as_json(history))
    assert of_trend(history).endswith("</html>\n")


@FUZZ
@given(place=st.data())
def test_record_with_one_part_replaced_is_read_or_refused(tmp_path: Any, place: st.DataObject) -> None:
    data = json.loads(dumps(RECORD))
    at: Any = data
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = place.draw(st.sampled_from(keys))
        if isinstance(at[key], (dict, list)) and at[key] and place.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = place.draw(TREES)
        break
    _read(tmp_path / "record.json", json.dumps(data).encode("utf-8", errors="surrogatepass"))


@FUZZ
@given(tree=TREES)
def test_any_json_is_read_or_refused(tmp_path: Any, tree: Any) -> None:
    _read(tmp_path / "record.json", json.dumps(tree).encode("utf-8", errors="surrogatepass"))


@FUZZ
@given(position=st.integers(0, len(dumps(RECORD)) - 1), byte=st.binary(min_size=0, max_size=4))
def test_record_with_some_bytes_replaced_is_read_or_refused(tmp_path: Any, position: int, byte: bytes) -> None:
    text = dumps(RECORD).encode()
    _read(tmp_path / "record.json", text[:position] + byte + text[position + len(byte) :])


PACKED = gzip.compress(dumps(RECORD).encode(), mtime=0)


@FUZZ
@given(position=st.integers(0, len(PACKED) - 1), byte=st.binary(max_size=4), length=st.integers(0, len(PACKED)))
def test_damaged_compressed_record_is_read_or_refused(tmp_path: Any, position: int, byte: bytes, length: int) -> None:
    _read(tmp_path / "record.json.gz", (PACKED[:position] + byte + PACKED[position + len(byte) :])[: length or None])


@FUZZ
@given(rows=st.lists(st.lists(LEAVES, max_size=8), max_size=3), head=st.dictionaries(st.sampled_from(HEAD), LEAVES))
def test_any_table_is_read_or_refused(tmp_path: Any, rows: list[Any], head: dict[str, Any]) -> None:
    keys = iter(f"rules/cpu/bf16/{number}" for number in range(9))
    tables = [{"kind": "state", **head, "rows": [[next(keys), *row] for row in rows]}]
    data = {**json.loads(dumps(RECORD)), "observations": tables}
    _read(tmp_path / "record.json", json.dumps(data).encode("utf-8", errors="surrogatepass"))


@pytest.mark.parametrize("depth", [10, 100_000])
def test_deep_nesting_is_read_or_refused(tmp_path: Any, depth: int) -> None:
    _read(tmp_path / "record.json", b"[" * depth + b"]" * depth)
