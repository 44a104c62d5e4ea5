"""File of calibrated floors: read strictly, written whole, and never lowered without a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_amp import floors
from pytest_amp.floors import FloorsError, Row, dumps, loads, merged

ROW = Row(
    gpu="NVIDIA H100 80GB HBM3",
    over="tf32",
    dtype="bf16",
    work="decoder",
    kind="device",
    floor=1.9,
    median=2.0,
    spread=0.002,
    sessions=3,
    torch="2.11.0",
    cuda="13.0",
    cudnn="9.1",
    driver="580",
    date="2026-11-28",
)


def test_floors_survive_a_round_trip() -> None:
    rows = (ROW, replace(ROW, dtype="fp16", reason="a driver that is slower"))
    assert loads(dumps(rows), "it") == rows


def test_shipped_file_is_valid() -> None:
    assert len({row.key for row in floors.shipped()}) == len(floors.shipped())
    assert dumps(floors.shipped()) == (Path(floors.__file__).parent / "floors.json").read_text(encoding="utf-8")
    for row in floors.shipped():
        assert row.floor <= floors.SHARES[row.kind] * row.median + 1e-4, row
        assert row.sessions >= 3, row


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "not JSON"),
        ("[]", "no file of floors"),
        ('{"schema": 2, "floors": []}', "no file of floors"),
        ('{"schema": 1, "floors": [{"gpu": "x"}]}', "a floor has"),
        (dumps([replace(ROW, floor=2.1)]), "a floor of 2.1 under a median of 2.0"),
        (dumps([replace(ROW, kind="eager")]), "eager"),
        (dumps([ROW]).replace('"sessions": 3', '"sessions": "3"'), "sessions is '3'"),
    ],
)
def test_invalid_file_is_refused(text: str, reason: str) -> None:
    with pytest.raises(FloorsError, match=f"^it: .*{reason}"):
        loads(text, "it")


def test_floor_falls_only_with_a_reason() -> None:
    higher, lower = replace(ROW, floor=1.95, median=2.1), replace(ROW, floor=1.8)
    assert merged([ROW], [higher], None) == (higher,)
    with pytest.raises(FloorsError, match=r"1 floor would fall, such as NVIDIA H100 .* from 1.9 to 1.8; .*--reason"):
        merged([ROW], [lower], " ")
    assert merged([ROW], [lower], "a new driver") == (replace(lower, reason="a new driver"),)
    retained = replace(higher, dtype="fp16")
    actual = merged([ROW, replace(retained, floor=1.9)], [lower, retained], "a new driver")
    assert set(actual) == {
        replace(lower, reason="a new driver"),
        retained,
    }  # the reason belongs to the floors that fell


def test_merging_retains_other_rows() -> None:
    other = replace(ROW, gpu="NVIDIA H200")
    assert set(merged([ROW, other], [replace(ROW, floor=1.95)], None)) == {replace(ROW, floor=1.95), other}


def test_calibrated_floor_is_found_by_its_key() -> None:
    assert floors.calibrated(ROW.key, [ROW]) == ROW
    assert floors.calibrated(("a card that nobody has", *ROW.key[1:]), [ROW]) is None
    for row in floors.shipped():
        assert floors.calibrated(row.key) == row
        halved = replace(row, floor=row.floor / 2)
        assert floors.calibrated(row.key, [halved]) == halved


def test_file_is_read_as_written_and_missing_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "floors.json"
    floors.write(path, [ROW])
    assert floors.read(path) == (ROW,)
    with pytest.raises(FloorsError, match="nowhere"):
        floors.read(tmp_path / "nowhere")
    with pytest.raises(FloorsError, match="missing"):
        floors.write(tmp_path / "missing" / "floors.json", [ROW])
