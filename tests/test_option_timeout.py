"""--amp-timeout: every test and every run ends, and observations until then are written."""

from __future__ import annotations

import sys

import pytest

from tests.project import Project, red, refused

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a signal interrupts a test")

ON_CPU = ("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=new.json", "-p", "no:randomly")
HANGING = """
import ctypes
import signal
import time


def test_a(amp):
    amp.observe("a", 1, kind="count")


def test_b(amp):
    {hang}


def test_c(amp):
    amp.observe("c", 1, kind="count")
"""
PYTHON = "time.sleep(100)"
#: Like a kernel that hangs: no signal reaches it.
KERNEL = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(100)"
#: Like KERNEL, but with the GIL held, so that no other thread runs.
LOCKED = "ctypes.PyDLL(None).sleep(100)"
TOLD = "test_it.py::test_b[cpu-bf16] did not end within 1 s"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_hanging_test_fails_and_other_tests_run(project: Project, workers: str) -> None:
    project.write(test_it=HANGING.format(hang=PYTHON))
    result = project.apart(*ON_CPU, "--amp-timeout=1", "-n", workers)
    result.assert_outcomes(passed=2, failed=1)
    assert (result.ret, red(result)) == (1, [])
    assert f"AmpFailure: {TOLD}" in result.stdout.str()
    assert project.observed("new.json") == {f"project/cpu/bf16/{name}": 1 for name in "ac"}


def test_call_that_cannot_be_interrupted_ends_the_run(project: Project) -> None:
    project.write(test_it=HANGING.format(hang=KERNEL))
    result = project.apart(*ON_CPU, "--amp-timeout=1")
    assert result.ret == 1
    text = result.stderr.str()
    assert f"RED       {TOLD}, and could not be interrupted" in text
    assert "in test_b" in text  # the stack
    record = project.record("new.json")
    assert (record["complete"], project.observed("new.json")) == (False, {"project/cpu/bf16/a": 1})
    assert record["failures"] == [
        {"key": "project/cpu/bf16/test_it::test_b", "why": f"{TOLD}, and could not be interrupted"}
    ]


@pytest.mark.parametrize("hang", [KERNEL, LOCKED], ids=["kernel", "locked"])
def test_worker_in_a_call_that_cannot_be_interrupted_is_replaced(project: Project, hang: str) -> None:
    project.write(test_it=HANGING.format(hang=hang))
    result = project.apart(*ON_CPU, "--amp-timeout=1", "-n", "1")
    assert result.ret == 1
    assert "crashed while running 'test_it.py::test_b[cpu-bf16]'" in result.stdout.str()
    assert project.observed("new.json") == {f"project/cpu/bf16/{name}": 1 for name in "ac"}
    (failure,) = project.record("new.json")["failures"]
    assert failure["key"] == "project/cpu/bf16/test_it::test_b"


def test_call_that_holds_the_gil_ends_with_its_stack(project: Project) -> None:
    project.write(test_it=HANGING.format(hang=LOCKED))
    result = project.apart(*ON_CPU, "--amp-timeout=1")
    assert result.ret == 1
    assert "in test_b" in result.stderr.str()


@pytest.mark.parametrize(("workers", "limit"), [("0", 8), ("2", 40)])  # workers may start slowly
def test_run_beyond_its_limit_is_red_and_recorded(project: Project, workers: str, limit: int) -> None:
    project.write(test_it=HANGING.format(hang=PYTHON))
    result = project.apart(*ON_CPU, f"--amp-timeout=0,{limit}", "-n", workers)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (line,) = [line for line in red(result) if "the run did not end" in line]
    assert line.startswith(f"the run did not end within {limit} s: ")
    assert project.observed("new.json")["project/cpu/bf16/a"] == 1
    assert project.record("new.json")["complete"] is False


def test_run_within_its_limits_passes(project: Project) -> None:
    project.write(test_it="import time\n\n\ndef test_it(amp):\n    time.sleep(0.3)\n")
    for value in ("0", "0,0", "0.5", "60,60"):
        result = project.here("--amp-device=cpu", "--amp-dtype=bf16", f"--amp-timeout={value}")
        assert (result.ret, red(result)) == (0, [])


@pytest.mark.parametrize("value", ["", "-1", "one", "1_0", "1,", ",1", "1,2,3", "inf", "nan"])
def test_bad_value_is_refused(project: Project, value: str) -> None:
    line = refused(project.here(f"--amp-timeout={value}"))
    assert line.startswith(f"--amp-timeout (command line): {value!r} is not a time limit; expected ")
