"""Files: read as written, written whole or not at all; a bad one is reported in one line."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_amp.record import (
    Better,
    Kind,
    Observation,
    Record,
    RecordError,
    Value,
    Verdict,
    parsed,
    read_record,
    write_record,
)
from pytest_amp.record.file import LARGEST, dumps
from pytest_amp.record.observation import canonical, check_value
from tests.project import ROOT

KEY = "rules/cpu/bf16/x"
RECORD = Record(
    observations=(
        Observation(KEY, Kind.RULE, "fp32", test="test_rules::test_rule"),
        Observation("rules/cpu/bf16/a", Kind.ERROR, 0.5, "relative", 1.0, Verdict.NEW, None, "t::t"),
        Observation(
            "rules/cuda/fp16/λ", Kind.STATE, [1, None, True, {"a": "b\n"}], verdict=Verdict.CHANGED, baseline=3
        ),
    ),
    provenance={"torch": "2.13.0", "devices": {"cpu": {}}, "seed": 0},
    summary={"cpu-bf16 rules": {"passed": 2}},
    complete=False,
)


def test_record_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    write_record(RECORD, path, replace=False)
    actual = read_record(path)
    assert sorted(actual.observations, key=lambda o: o.key) == sorted(RECORD.observations, key=lambda o: o.key)
    assert (actual.provenance, actual.summary, actual.complete) == (RECORD.provenance, RECORD.summary, False)
    assert actual.by_key()[KEY].value == "fp32"


def test_observations_are_rows_of_tables_with_shared_fields(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    more = [Observation(f"rules/cpu/bf16/{name}", Kind.RULE, "fp32", test="test_rules::test_rule") for name in "zy"]
    gradient = Observation("gradients/cpu/bf16/a", Kind.RULE, "fp32", test="test_rules::test_rule")
    write_record(replace(RECORD, observations=(*RECORD.observations, *more, gradient)), path, replace=False)
    text = path.read_text(encoding="utf-8")
    _, _, tables = text.partition(' "observations": [\n')
    assert tables.splitlines() == [
        '  {"test": "test_rules::test_rule", "kind": "rule", "rows": [',
        '   ["gradients/cpu/bf16/a", "fp32"]',
        "  ]},",
        '  {"kind": "state", "rows": [',
        '   ["rules/cuda/fp16/λ", [1, null, true, {"a": "b\\n"}], null, null, null, 3, "changed"]',
        "  ]},",
        '  {"test": "t::t", "kind": "error", "unit": "relative", "rows": [',
        '   ["rules/cpu/bf16/a", 0.5, 1.0, null, null, null, "new"]',
        "  ]},",
        '  {"test": "test_rules::test_rule", "kind": "rule", "rows": [',
        '   ["rules/cpu/bf16/x", "fp32"],',
        '   ["rules/cpu/bf16/y", "fp32"],',
        '   ["rules/cpu/bf16/z", "fp32"]',
        "  ]}",
        " ]",
        "}",
    ]
    assert json.loads(text)["columns"] == ["key", "value", "allowed", "over_seeds", "interval", "baseline", "verdict"]


def test_order_of_observations_does_not_matter() -> None:
    assert dumps(RECORD) == dumps(replace(RECORD, observations=RECORD.observations[::-1]))


def test_compressed_file_is_reproducible_and_read_by_its_content(tmp_path: Path) -> None:
    """Compression follows the name when writing, the first bytes when reading; the same record is the same file."""
    plain, packed, renamed = (tmp_path / name for name in ("new.json", "new.json.gz", "renamed.json"))
    many = Record(tuple(Observation(f"rules/cpu/bf16/{n}", Kind.RULE, "fp32") for n in range(1000)))
    for path in (plain, packed):
        write_record(many, path, replace=False)
    assert packed.stat().st_size < plain.stat().st_size / 5
    first = packed.read_bytes()
    assert first[4:8] == bytes(4)  # RFC 1952: no time stamp
    assert read_record(packed) == read_record(plain)
    write_record(many, packed, replace=True)
    assert packed.read_bytes() == first
    packed.rename(renamed)
    assert read_record(renamed) == read_record(plain)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data[: len(data) // 2], "compressed, and not whole: "),
        (lambda data: data[:2], "compressed, and not whole: "),
        (lambda data: data[:20] + b"x" + data[21:], "compressed, and not whole: "),
        (lambda data: data[:-6] + b"xxxxxx", "compressed, and not whole: "),
        (lambda data: data + b"x" * 9, "compressed, and not whole: "),
        (lambda _: gzip.compress(b"\xff"), "not text: "),
        (lambda _: gzip.compress(b"{"), "not JSON: "),
        (lambda _: gzip.compress(b" " * (LARGEST + 1)), "more than 256 MiB, which no record has"),
    ],
    ids=["half", "beginning", "a byte", "checksum", "appended", "no text", "no JSON", "bomb"],
)
def test_damaged_compressed_file_is_refused_in_one_line(
    tmp_path: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    path = tmp_path / "old.json.gz"
    write_record(RECORD, path, replace=False)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError) as error:
        read_record(path)
    assert str(error.value).startswith(f"{path}: {problem}")
    assert len(str(error.value).splitlines()) == 1


def test_empty_record_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    write_record(Record(()), path, replace=False)
    assert read_record(path) == Record(())


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None)
@given(plain)
def test_values_survive_a_round_trip(value: Value) -> None:
    """Compare more strictly than Python: 1, 1.0 and True stay apart, NaN stays itself."""
    check_value(KEY, value)
    text = dumps(Record((Observation(KEY, Kind.STATE, value),)))
    (actual,) = parsed(text).observations
    assert canonical(actual.value) == canonical(value)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_non_finite_values_are_written_as_text(tmp_path: Path, value: float) -> None:
    path = tmp_path / "new.json"
    record = Record(
        (Observation(KEY, Kind.ERROR, value, allowed=value),), provenance={"x": value}, summary={"y": [value]}
    )
    write_record(record, path, replace=False)
    json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    (actual,) = read_record(path).observations
    assert (actual.value, str(actual.allowed)) == (str(value), str(value))


def test_lone_surrogate_survives_a_round_trip(tmp_path: Path) -> None:
    """The command line is part of the provenance, and a path in it that is not UTF-8 has surrogates."""
    path = tmp_path / "new.json"
    write_record(Record((), provenance={"command": "pytest \udcff"}), path, replace=False)
    assert read_record(path).provenance == {"command": "pytest \udcff"}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000, b"\x00", b"{}{}"])
def test_invalid_json_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "old.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"old\.json: not ") as error:
        read_record(path)
    assert len(str(error.value).splitlines()) == 1


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    text = dumps(RECORD).rstrip()
    for length in range(0, len(text), 7):
        path.write_text(text[:length], encoding="utf-8")
        with pytest.raises(RecordError):
            read_record(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.json: No such file or directory"):
        read_record(tmp_path / "none.json")
    with pytest.raises(RecordError, match="Is a directory"):
        read_record(tmp_path)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("function", ["fsync", "link", "replace", "open"])
def test_failing_disk_leaves_the_old_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    replace: bool,  # noqa: FBT001  # a parameter of a test
) -> None:
    path = tmp_path / "new.json"
    if replace:
        path.write_text("old", encoding="utf-8")

    def full(*_args: object, **_keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    used = {True: ("fsync", "replace", "open"), False: ("fsync", "link", "open")}[replace]
    if function in used:
        with pytest.raises(RecordError, match=r"new\.json: No space left on device"):
            write_record(RECORD, path, replace=replace)
        monkeypatch.undo()
        assert [file.name for file in tmp_path.iterdir()] == ["new.json"] * replace
        assert not replace or path.read_text(encoding="utf-8") == "old"
    else:
        write_record(RECORD, path, replace=replace)


def test_value_that_json_lacks_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RecordError, match=r"new\.json: Object of type object is not JSON serializable"):
        write_record(Record((), provenance={"x": object()}), path, replace=True)  # type: ignore[dict-item]
    assert (path.read_text(encoding="utf-8"), len(list(tmp_path.iterdir()))) == ("old", 1)


def test_existing_file_is_overwritten_only_with_replace(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RecordError, match="exists already, and a record is never overwritten"):
        write_record(RECORD, path, replace=False)
    assert (path.read_text(encoding="utf-8"), len(list(tmp_path.iterdir()))) == ("old", 1)
    write_record(RECORD, path, replace=True)
    assert read_record(path).complete is False


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_pipe_is_never_replaced(tmp_path: Path, linked: bool, replace: bool) -> None:  # noqa: FBT001
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = pipe
    if linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(RecordError, match=r"(pipe|link): not a regular file"):
        write_record(RECORD, path, replace=replace)
    assert (pipe.is_fifo(), path.is_symlink()) == (True, linked)
    assert {file.name for file in tmp_path.iterdir()} == {"pipe", path.name}


def test_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, path = tmp_path / "folder" / "target.json", tmp_path / "link.json"
    target.write_text("old", encoding="utf-8")
    path.symlink_to(target)
    write_record(RECORD, path, replace=True)
    assert path.is_symlink()
    assert not target.is_symlink()
    assert read_record(target).provenance == RECORD.provenance


@pytest.mark.parametrize("exists", [True, False])
def test_file_system_without_hard_links_is_supported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exists: bool,  # noqa: FBT001  # a parameter of a test
) -> None:
    path = tmp_path / "new.json"
    if exists:
        path.write_text("old", encoding="utf-8")

    def unsupported(*_args: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    if exists:
        with pytest.raises(RecordError, match="exists already"):
            write_record(RECORD, path, replace=False)
        assert path.read_text(encoding="utf-8") == "old"
    else:
        write_record(RECORD, path, replace=False)
        assert len(read_record(path).observations) == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_failed_write_without_hard_links_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links an empty file would otherwise remain, which no later run may replace."""

    def refused(*_args: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(RecordError, match="Operation not permitted"):
        write_record(RECORD, tmp_path / "new.json", replace=False)
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path

from pytest_amp.record import Kind, Observation, Record, RecordError, write_record

number, path, replace = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "True"
many = tuple(Observation(f"rules/cpu/bf16/{n}", Kind.COUNT, number) for n in range(300))
sys.stdin.read()
for _ in range(20 if replace else 1):
    try:
        write_record(Record(many), path, replace=replace)
    except RecordError as error:
        sys.exit(f"{error}")
"""


@pytest.mark.parametrize("replace", [True, False])
def test_concurrent_writers_leave_one_whole_file(tmp_path: Path, replace: bool) -> None:  # noqa: FBT001  # a parameter of a test
    """Readers see one writer's file, whole; without replace exactly one writer succeeds."""
    path = tmp_path / "new.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number), str(path), str(replace)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            assert len({o.value for o in read_record(path).observations}) == 1
    failed = [writer for writer in writers if writer.returncode]
    for writer in writers:
        assert writer.stderr is not None
        assert (b"exists already" in writer.stderr.read()) is (writer in failed)
        writer.stderr.close()
    assert len(failed) == (0 if replace else 3)
    assert len(read_record(path).observations) == 300
    assert [file.name for file in tmp_path.iterdir()] == ["new.json"]


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
