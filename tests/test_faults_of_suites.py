"""Known faults of the suites: each row names existing tests, and has what a report or a reader needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from pytest_amp.known.expected import exceptions_of
from pytest_amp.known.rows import Known, read_known
from tests.project import ROOT

ROWS = read_known(ROOT / "suites" / "known.toml")
#: CUDA may be missing: then the tests on it are collected, without parameters that depend on the device.
ON = ("--amp-device=cpu,fake:cuda,fake:xpu,fake:mps,fake:mtia,cuda", "--amp-allow-missing=device")
#: Reports: issues and pull requests of a repository, a page of torch's documentation, or none.
_REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+(, ([\w.-]+/[\w.-]+)?#\d+)*|torch/[\w./-]+\.md|no report found")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the keys of all tests of the suites."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    words = (*ON, "--amp-dtype=bf16,fp16", "--amp-tier=all", "--collect-only", "-q", "-p", "tests.collected_keys")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "pytest", "suites", "-p", "no:cacheprovider", "-n", "0", *words],
        cwd=ROOT,
        env={**os.environ, "KEYS": str(file), "PYTHONPATH": path},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return tuple(file.read_text(encoding="utf-8").splitlines())


def unmatched(rows: Sequence[Known], keys: Sequence[str]) -> list[str]:
    """Return the patterns of ``rows`` that match none of ``keys``.

    On CUDA, which may be missing, parameters that depend on the device are unknown: those of other devices count, and
    of a test that only CUDA has, its name.
    """
    result = []
    for row in rows:
        devices = () if "cuda" in row.devices else row.devices
        for pattern in row.keys:
            alone = replace(row, keys=(pattern,), devices=devices)
            name = pattern.partition("[")[0]
            test = replace(alone, keys=(name, f"{name}[*]"))
            of_test = [key for key in keys if test.matches(key)]
            unknown = bool(of_test) and all("/cuda/" in key and "[" not in key for key in of_test) and "[" in pattern
            if not unknown and not any(alone.matches(key) for key in of_test):
                result.append(pattern)
    return result


def test_rows_match_existing_tests(keys: tuple[str, ...]) -> None:
    """A row without a match is misspelt, or its test was renamed, so that its fault would be red."""
    assert unmatched(ROWS, keys) == []


def test_row_without_a_test_is_detected() -> None:
    keys = ("rules/cpu/bf16/test_a::test_x[1]", "rules/cuda/bf16/test_a::test_y", "rules/cpu/bf16/test_a::test_z")
    row = Known(("rules/*/test_a::test_x[*]", "rules/*/test_a::test_x"), "why", "a/b#1")
    assert unmatched([row], keys) == ["rules/*/test_a::test_x"]
    assert unmatched([replace(row, devices=("fake-cuda",))], keys) == list(row.keys)
    assert unmatched([replace(row, keys=("rules/*/test_b::test_x",))], keys) == ["rules/*/test_b::test_x"]
    assert unmatched([replace(row, keys=("rules/*/test_a::test_y[2]",), devices=("cuda",))], keys) == []
    assert unmatched([replace(row, keys=("rules/*/test_a::test_z[2]",))], keys) == ["rules/*/test_a::test_z[2]"]


def test_families_of_rows_exist() -> None:
    families = {key.partition("/")[0] for row in ROWS for key in row.keys}
    assert [name for name in families if not (ROOT / "suites" / name / "__init__.py").is_file()] == []


def test_reports_of_rows_have_a_known_form() -> None:
    assert [row.report for row in ROWS if not _REPORT.fullmatch(row.report)] == []


def test_rows_leave_devices_and_dtypes_to_their_columns() -> None:
    """Keep devices and dtypes out of keys, so that a table by device needs no parsing."""
    assert [key for row in ROWS for key in row.keys if key.split("/")[1] != "*"] == []


def overlap(first: Known, second: Known) -> bool:
    """Return whether two rows have a key, a device, a dtype and the lack of lower bounds in common."""
    columns = ((first.devices, second.devices), (first.dtypes, second.dtypes))
    meets = all(not one or not other or set(one) & set(other) for one, other in columns)
    return bool(set(first.keys) & set(second.keys)) and meets and first.since is None and second.since is None


def test_rows_of_one_key_are_about_different_devices_or_dtypes() -> None:
    """Otherwise a row of all releases would hide that another one ends, and expect a fixed fault."""
    assert [row.name for row, other in combinations(ROWS, 2) if overlap(row, other)] == []
    row = Known(("rules/*/test_a::test_x",), "why", "a/b#1")
    assert overlap(row, replace(row, devices=("cpu",), until="2.14"))
    assert not overlap(replace(row, devices=("cuda",)), replace(row, devices=("cpu",), until="2.14"))


def test_exceptions_of_rows_exist() -> None:
    assert all(exceptions_of(row) for row in ROWS if row.raises)
