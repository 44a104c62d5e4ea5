"""Failures of checks that a test suppresses or loses make it, or the run, red; expected failures pass."""

from __future__ import annotations

import re
import sys

import pytest

from tests.project import ON_CPU, Project, red, summary

HEAD = """
import asyncio
import contextlib
import gc
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pytest_amp.failure import AmpFailure


def check(amp):
    amp.check_fp32(torch.arange(100.0).bfloat16())


async def task(amp):
    check(amp)
"""
TOLD = "AmpFailure: the tensor is bfloat16, it should be float32"
LOST = (
    HEAD
    + """

def test_pool(amp):
    with ThreadPoolExecutor() as pool:
        pool.submit(check, amp)


def test_thread(amp):
    thread = threading.Thread(target=check, args=(amp,))
    thread.start()
    thread.join()


def test_task(amp):
    async def main():
        task_of_nobody = asyncio.create_task(task(amp))
        await asyncio.sleep(0)
        return str(task_of_nobody)

    asyncio.run(main())


def test_gather(amp):
    async def main():
        await asyncio.gather(task(amp), return_exceptions=True)

    asyncio.run(main())


def test_fork(amp):
    child = os.fork()
    if child == 0:
        try:
            check(amp)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_process(amp):
    process = multiprocessing.get_context("fork").Process(target=check, args=(amp,))
    process.start()
    process.join()


def test_crash(amp):
    child = os.fork()
    if child == 0:
        amp.observe("seen", 1, kind="count")
        os._exit(3)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def test_deleted(amp):
    class Checked:
        def __del__(self):
            check(amp)

    Checked()


def test_except(amp):
    try:
        check(amp)
    except:
        pass


def test_return(amp):
    def call():
        try:
            check(amp)
        finally:
            return

    call()


def test_suppressed(amp):
    with contextlib.suppress(BaseException):
        check(amp)


def test_another_is_raised(amp):
    with pytest.raises(RuntimeError):
        try:
            check(amp)
        except BaseException:
            raise RuntimeError("another") from None


def test_skipped(amp):
    try:
        check(amp)
    except BaseException:
        pytest.skip("not today")


@pytest.mark.xfail(strict=False)
def test_expected_and_swallowed(amp):
    with contextlib.suppress(BaseException):
        check(amp)


@pytest.fixture
def swallowing(amp):
    with contextlib.suppress(BaseException):
        check(amp)


def test_fixture(swallowing):
    pass


@pytest.fixture
def finalized(amp):
    yield
    with contextlib.suppress(BaseException):
        check(amp)


def test_finalizer(finalized):
    pass
"""
)
RECEIVED = (
    HEAD
    + """

def test_raises(amp):
    with pytest.raises(AmpFailure):
        check(amp)
    with pytest.raises(pytest.fail.Exception, match="should be float32"):
        check(amp)
    pytest.raises(BaseException, check, amp)


def test_thread(amp):
    with ThreadPoolExecutor() as pool, pytest.raises(AmpFailure):
        pool.submit(check, amp).result()


def test_group(amp):
    if hasattr(pytest, "RaisesGroup"):
        with pytest.raises(AmpFailure) as one:
            check(amp)
        group = BaseExceptionGroup("two", [one.value, AmpFailure("another")])
        with pytest.RaisesGroup(AmpFailure, AmpFailure):
            raise group


@pytest.mark.xfail(strict=True, raises=AmpFailure)
def test_expected(amp):
    check(amp)


def test_copy(amp):
    with pytest.raises(AmpFailure) as raised:
        check(amp)
    with pytest.raises(AmpFailure):
        raise pickle.loads(pickle.dumps(raised.value))


def failing(amp):
    with pytest.raises(AmpFailure):
        check(amp)


def test_fork(amp):
    child = os.fork()
    if child == 0:
        failing(amp)
        os._exit(0)
    os.waitpid(child, 0)


def test_process(amp):
    process = multiprocessing.get_context("fork").Process(target=failing, args=(amp,))
    process.start()
    process.join()


def test_a_draw_that_does_not_run(amp):
    from pytest_amp.numerics.spread import other_draws

    def step(seed):
        raise AmpFailure(f"it does not run with {seed}")

    case = amp.case(lambda: torch.nn.Linear(4, 4), lambda: torch.randn(2, 4), lambda m, b: m(b).float().square().mean())
    assert amp.conditions.draws > 1
    assert other_draws(case, amp.conditions, step) == []
"""
)


def _names(source: str) -> list[str]:
    return [line[4:].partition("(")[0] for line in source.splitlines() if line.startswith("def test_")]


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
@pytest.mark.parametrize("workers", ["0", "1"])
def test_uncollected_failure_is_red_in_its_own_test(project: Project, workers: str) -> None:
    project.write(test_it=LOST)
    result = project.apart(*ON_CPU, "-n", workers, "-Wignore", "-rfE", "-vv")  # each failure, not one a cause
    outcome = result.parseoutcomes()
    names = _names(LOST)
    # A failing fixture is an error before its test, a failing finalizer one after the test passed.
    assert (outcome["failed"], outcome["errors"], outcome["passed"]) == (len(names) - 2, 2, 1), result.stdout.str()
    assert result.ret == 1
    text = result.stdout.str()
    for name in names:
        message = f"test_it.py::{name}[cpu-bf16] - AmpFailure: "
        assert f"FAILED {message}" in text or f"ERROR {message}" in text, name
    assert text.count(TOLD) >= len(names) - 1
    assert "in which a check was used, ended with status 3" in text
    assert "lost in   the thread ThreadPoolExecutor-" in text
    assert len(set(re.findall(r"lost in   the process (\d+)", text))) == 3


@pytest.mark.parametrize("workers", ["0", "1"])
def test_failure_that_a_test_expects_or_catches_passes(project: Project, workers: str) -> None:
    project.write(test_it=RECEIVED)
    result = project.apart(*ON_CPU, "-n", workers, "-Wignore", "-rfE", "--amp-record=new.json")
    outcome = result.parseoutcomes()
    assert (result.ret, red(result)) == (0, []), result.stdout.str()
    assert (outcome["passed"], outcome["xfailed"]) == (len(_names(RECEIVED)) - 1, 1)


LATE = (
    HEAD
    + """

@pytest.fixture(scope="session")
def late():
    yield
    with contextlib.suppress(BaseException):
        raise AmpFailure("a finalizer of the session")


HELD = []


class Checked:
    def __del__(self):
        raise AmpFailure("deleted late")


def test_it(amp, late):
    held = Checked()
    held.itself = held


def test_other(amp):
    pass
"""
)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_failure_raised_after_its_test_is_red(project: Project, workers: str) -> None:
    """Raise in a finalizer of the session, in the teardown of the last test, and in an object's deletion."""
    project.write(test_it=LATE)
    result = project.apart(*ON_CPU, "-n", workers, "-Wignore")
    assert result.ret == 1
    text = result.stdout.str()
    assert "AmpFailure: a finalizer of the session" in text
    assert "AmpFailure: deleted late" in text


_EATEN = {
    "call": "@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_call(item):\n    try:\n        yield\n"
    "    except BaseException:\n        pass\n",
    "function": "@pytest.hookimpl(wrapper=True)\ndef pytest_pyfunc_call(pyfuncitem):\n    try:\n        yield\n"
    "    except BaseException:\n        pass\n    return True\n",
    "report": "@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_runtest_makereport(item, call):\n"
    "    report = yield\n    report.outcome, report.longrepr = 'passed', None\n    return report\n",
    "log": "@pytest.hookimpl(tryfirst=True)\ndef pytest_runtest_logreport(report):\n"
    "    report.outcome, report.longrepr = 'passed', None\n",
}


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("how", _EATEN)
def test_failure_that_a_conftest_suppresses_is_red(project: Project, how: str, workers: str) -> None:
    project.write(
        conftest=f"import pytest\n\n\n{_EATEN[how]}", test_it=f"{HEAD}\n\ndef test_it(amp):\n    check(amp)\n"
    )
    result = project.apart(*ON_CPU, "-n", workers)
    assert result.ret == 1
    if how in ("report", "log"):
        (line,) = red(result)
        assert line == f"test_it.py::test_it[cpu-bf16]: a check failed, and the report says that it passed: {TOLD}"
    else:
        result.assert_outcomes(failed=1)
        assert TOLD in result.stdout.str()


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("fixture", ["amp", ""], ids=["wrapped", "replaced"])
def test_mock_in_place_of_amp_is_red(project: Project, fixture: str, workers: str) -> None:
    project.write(
        conftest="from unittest.mock import MagicMock\n\nimport pytest\n\n\n@pytest.fixture\n"
        f"def amp({fixture}):\n    return MagicMock()\n",
        test_it=f"{HEAD}\n\ndef test_it(amp):\n    check(amp)\n",
    )
    result = project.apart(*ON_CPU, "-n", workers)
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    assert "passed with a MagicMock in place of amp, whose checks check nothing" in result.stdout.str()


def test_mock_in_a_project_without_the_plugin_passes(project: Project) -> None:
    project.write(
        test_it="from unittest.mock import Mock\n\nimport pytest\n\n\n@pytest.fixture\ndef amp():\n"
        "    return Mock()\n\n\ndef test_it(amp):\n    amp.play()\n"
    )
    result = project.apart()
    result.assert_outcomes(passed=1)
    assert (result.ret, summary(result)) == (0, [])


def test_suppressed_failure_of_a_known_fault_is_expected(project: Project) -> None:
    project.file(
        "known.toml",
        '[[known]]\nkey = "project/cpu/bf16/test_it::test_it"\nreason = "x"\nreport = "no report found"\n',
    )
    project.write(
        test_it=f"{HEAD}\n\ndef test_it(amp):\n    with contextlib.suppress(BaseException):\n        check(amp)\n"
    )
    result = project.apart(*ON_CPU, "--amp-known=known.toml")
    result.assert_outcomes(xfailed=1)
    assert (result.ret, red(result)) == (0, [])
