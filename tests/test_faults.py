"""Known faults by release: a file beside the packages of families removes an expected failure, or adds one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_amp.data_files.releases import release_of
from pytest_amp.known.torch_faults import FILE, Fault, faults_beside
from tests.project import Project

NOW = release_of(torch.__version__)
EARLIER, THIS, LATER = (f"{NOW[0]}.{NOW[1] + step}" for step in (-1, 0, 1))
FAMILY = 'from pytest_amp.families import Family\nFAMILY = Family("own")\n'
TESTS = """
import pytest

@pytest.mark.amp(xfail={"cpu": "pytorch/pytorch#1"})
def test_by_marker(amp):
    FIRST

@pytest.mark.xfail(strict=True, reason="pytorch/pytorch#2")
@pytest.mark.parametrize("size", [1, 2])
def test_by_pytest(amp, size):
    SECOND

def test_sound(amp):
    THIRD
"""
ROW = '[[fault]]\nkey = "own/cpu/*/test_it::{}"\nreason = "why"\nreport = "pytorch/pytorch#3"\n{}\n'


def run(project: Project, *rows: str, passes: str = "012") -> pytest.RunResult:
    """Run the tests; those whose numbers are in ``passes`` pass."""
    words = ("FIRST", "SECOND", "THIRD")
    text = TESTS
    for number, word in enumerate(words):
        text = text.replace(word, "pass" if str(number) in passes else "assert False")
    project.file("checks/__init__.py", "")
    project.file("checks/own/__init__.py", FAMILY)
    project.file("checks/own/test_it.py", text)
    project.file(f"checks/{FILE}", "\n".join(rows))
    return project.here("checks", "--amp-device=cpu", "--amp-dtype=bf16")


def test_fault_that_is_mended_is_expected_no_more(project: Project) -> None:
    rows = [ROW.format(name, f'until = "{EARLIER}"') for name in ("test_by_marker", "test_by_pytest[2]")]
    result = run(project, *rows, passes="02")
    result.assert_outcomes(passed=2, xfailed=1, failed=1)  # one size is fixed, and fails; the other is not
    result.stdout.fnmatch_lines(["FAILED checks/own/test_it.py::test_by_pytest[[]cpu-bf16-2]*"])


def test_fault_that_lasts_is_expected(project: Project) -> None:
    rows = [ROW.format(name, f'until = "{THIS}"') for name in ("test_by_marker", "test_by_pytest*")]
    run(project, *rows, passes="2").assert_outcomes(passed=1, xfailed=3)


def test_expected_failure_that_passes_is_red_without_a_row(project: Project) -> None:
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*3 fixed upstream*"])


@pytest.mark.parametrize(("since", "expected"), [(THIS, 4), (LATER, 3)])
def test_fault_that_a_release_brings_is_expected_from_then_on(project: Project, since: str, expected: int) -> None:
    result = run(project, ROW.format("test_sound", f'since = "{since}"'), passes="")
    result.assert_outcomes(xfailed=expected, failed=4 - expected)


def test_fault_that_a_release_brought_and_that_is_gone_is_red(project: Project) -> None:
    result = run(project, ROW.format("test_sound", f'since = "{EARLIER}"'), passes="2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*fixed upstream: *pytorch/pytorch#3: why passes on cpu-bf16*"])


@pytest.mark.parametrize(
    ("fault", "mended", "brought"),
    [
        (Fault("k", "r", "p", until=EARLIER), True, False),
        (Fault("k", "r", "p", until=THIS), False, False),
        (Fault("k", "r", "p", since=THIS), False, True),
        (Fault("k", "r", "p", since=LATER), False, False),
        (Fault("k", "r", "p", since=EARLIER, until=EARLIER), False, False),
    ],
)
def test_bounds_of_a_fault(fault: Fault, *, mended: bool, brought: bool) -> None:
    assert (fault.is_mended_in(NOW), fault.is_brought_by(NOW)) == (mended, brought)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[fault]\n", "not TOML"),
        ("[[fault]]\nkey = 'a'\n", "reason is None; expected text in each of key, reason, report"),
        (ROW.format("x", ""), "neither since nor until"),
        (ROW.format("x", 'until = "soon"'), "soon: no release"),
        (ROW.format("x", 'since = "2.9"\nuntil = "2.8"'), "since 2.9 is later than until 2.8"),
        (ROW.format("x", 'sinse = "2.9"'), "sinse is '2.9'"),
        ("[other]\n", "'other'; expected tables"),
    ],
)
def test_malformed_file_is_a_usage_error_in_one_line(project: Project, text: str, says: str) -> None:
    result = run(project, text)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line.startswith("ERROR")]
    assert FILE in line
    assert says in line


def test_family_without_a_file_has_no_faults(tmp_path: Path) -> None:
    assert faults_beside(tmp_path / "own") == ()
