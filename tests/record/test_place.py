"""Place, name and permissions of written files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pytest_amp.known.rows import Known, read_known
from pytest_amp.record import Record, read_record, write_record

RECORD = Record(())


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_file_permissions_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    """Temporary files belong to their owner alone; a baseline is for everybody who checks the repository out."""
    before = os.umask(mask)
    try:
        write_record(RECORD, tmp_path / "new.json", replace=False)
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == mode


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    path.touch()
    path.chmod(0o640)
    write_record(RECORD, path, replace=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("replace", [True, False])
def test_longest_file_name_is_written(tmp_path: Path, replace: bool) -> None:  # noqa: FBT001  # a parameter
    path = tmp_path / f"{'n' * 250}.json"
    write_record(RECORD, path, replace=replace)
    assert read_record(path) == Record((), ran=None)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Windows editors put it before UTF-8."""
    write_record(RECORD, tmp_path / "new.json", replace=False)
    written = (tmp_path / "new.json").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "saved.json").write_bytes(b"\xef\xbb\xbf" + written)
    assert read_record(tmp_path / "saved.json") == read_record(tmp_path / "new.json")
    known = '[[known]]\r\nkey = "rules/*"\r\nreason = "a"\r\nreport = "b"\r\n'
    (tmp_path / "known.toml").write_bytes(b"\xef\xbb\xbf" + known.encode())
    assert read_known(tmp_path / "known.toml") == (Known(("rules/*",), "a", "b"),)
