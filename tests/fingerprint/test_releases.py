"""Releases that the file does not cover, and a torch whose own tests cannot be read."""

from __future__ import annotations

import pytest

from tests.project import ROOT, Project, red

#: Plugin module that makes the file end before this torch, or removes one entry.
OLDER_FILE = """
import torch
from pytest_amp.fingerprint import data

known = data.load()
release = data.short_release(torch.__version__)
if NEWER:
    last = known.measured["cpu"] = ["2.6"]
    was = known.expected("cpu", "bf16", torch.__version__)
    for places in known.known.values():  # what this torch gives, as if it had been measured on the one before
        places[("cpu", "bf16", "2.6")] = places.get(("cpu", "bf16", release))
del known.known["signal.windows.nuttall"]
known.known["signal.windows.of_yore"] = dict(known.known["signal.windows.hann"])
CHANGE
data.load = lambda path=None: known
"""
CHANGE = 'known.known["signal.windows.hann"][("cpu", "bf16", "2.6")] = "fp32 low | low low"'


def _run(project: Project, *arguments: str, newer: bool, change: str = "") -> pytest.RunResult:
    project.file("older_file.py", OLDER_FILE.replace("NEWER", str(newer)).replace("CHANGE", change))
    project.pytester.syspathinsert()
    return _fingerprint(project, "-p", "older_file", "--amp-record=seen.json", *arguments)


def _fingerprint(project: Project, *arguments: str) -> pytest.RunResult:
    tests = str(ROOT / "suites" / "fingerprint" / "test_dtypes.py")
    return project.apart(tests, "-k", "signal or new_or_gone", "--amp-device=cpu", "--amp-dtype=bf16", *arguments)


def test_new_and_gone_entries_are_recorded_on_a_newer_release(project: Project) -> None:
    result = _run(project, newer=True)
    assert result.ret == pytest.ExitCode.OK
    observed = project.observed("seen.json")
    assert observed["fingerprint/cpu/bf16/new entries"] == ["signal.windows.nuttall"]
    assert observed["fingerprint/cpu/bf16/gone entries"] == ["signal.windows.of_yore"]
    assert observed["fingerprint/cpu/bf16/signal.windows.nuttall"] == "fp32 fp32 | ="


def test_new_and_gone_entries_fail_on_a_newer_release_if_strict(project: Project) -> None:
    result = _run(project, "--amp-strict", newer=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*new: signal.windows.nuttall, gone: signal.windows.of_yore*"])


def test_new_and_gone_entries_fail_on_a_measured_release(project: Project) -> None:
    result = _run(project, newer=False)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*new: signal.windows.nuttall, gone: signal.windows.of_yore*"])


def test_changed_dtype_fails_on_a_newer_release(project: Project) -> None:
    result = _run(project, newer=True, change=CHANGE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "AmpFailure: 1 under autocast(cpu, bfloat16) return other dtypes: signal.windows.hann",
            "  known     signal.windows.hann: fp32 low | low low",
            "  now       signal.windows.hann: fp32 fp32 | =",
        ]
    )


def test_operators_that_cannot_be_examined_are_red(project: Project) -> None:
    result = _fingerprint(project, "-p", "tests.fingerprint.no_operators")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["AmpFailure: the operators of torch * cannot be examined: *common_methods_*"])


def test_operators_that_cannot_be_examined_are_skipped_if_allowed(project: Project) -> None:
    result = _fingerprint(project, "-p", "tests.fingerprint.no_operators", "--amp-allow-missing=sweep")
    result.assert_outcomes(skipped=2)
    assert (result.ret, red(result)) == (pytest.ExitCode.OK, [])
    result.stdout.fnmatch_lines(["*missing, as --amp-allow-missing allows: the operators of torch *common_methods_*"])


def test_operators_that_cannot_be_examined_are_red_with_other_allowances(project: Project) -> None:
    result = _fingerprint(project, "-p", "tests.fingerprint.no_operators", "--amp-allow-missing=device,dtype,baseline")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
