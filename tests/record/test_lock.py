"""Exclusive changes of a part of a file: no update is lost, and no process waits for ever."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_amp.record import RecordError, alone, lock


def test_lock_loses_no_concurrent_update(tmp_path: Path) -> None:
    path, other = tmp_path / "count", tmp_path / "link"
    path.write_text("0", encoding="utf-8")
    other.symlink_to(path)

    def add(number: int) -> None:
        with alone(path if number % 2 else other):
            count = int(path.read_text(encoding="utf-8"))
            time.sleep(0.002)
            path.write_text(str(count + 1), encoding="utf-8")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert path.read_text(encoding="utf-8") == "24"
    assert {path.name for path in tmp_path.iterdir()} == {"count", "link"}


def test_lock_is_released_by_an_interrupt(tmp_path: Path) -> None:
    def interrupted() -> None:
        with alone(tmp_path / "record.json"):
            assert (tmp_path / ".record.json.lock").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_lock_left_by_a_killed_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.1)
    path, left = tmp_path / "record.json", tmp_path / ".record.json.lock"
    left.touch()
    with pytest.raises(RecordError) as raised, alone(path):
        pytest.fail("two at once")
    assert str(raised.value) == (
        f"{path}: another process has been changing it for 0.1 s; try again when it has ended, or, if it was "
        "killed, after removing .record.json.lock from the same folder"
    )
    assert left.exists()


def test_lock_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "record.json"
    with pytest.raises(RecordError, match=r"record\.json: No such file or directory$"), alone(path):
        pytest.fail("no folder")


def test_lock_is_released_by_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(ValueError, match="inside"), alone(path):
        raise ValueError("inside")
    with alone(path):
        path.write_text("{}", encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]
