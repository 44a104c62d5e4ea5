"""Detection of tests that pass without a check.

The function was never called, ``amp`` is a mock, or an observed value is nonfinite. ``expect_called``,
``expect_no_mock`` and ``expect_finite`` fail the report of such a test. They run last, after other plugins' hooks.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from pytest_amp.failure import AmpFailure
from pytest_amp.fixtures import concerned
from pytest_amp.record import Kind, Observation
from pytest_amp.run.identity import OBSERVATIONS

#: Kinds whose value is a scalar that must be finite. A state, a count or a series may contain infinity.
_NUMBERS = frozenset({Kind.ERROR, Kind.RATIO, Kind.SECONDS, Kind.BYTES, Kind.MEASURE})
#: Set when the function of a test is called.
_CALLED = pytest.StashKey[bool]()


def noting(item: pytest.Function) -> Callable[..., Any]:
    """Return the function of ``item``, wrapped to record its call; a coroutine function remains one."""
    function, stash = item.obj, item.stash

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            stash[_CALLED] = True
            return await function(*args, **kwargs)

        return awaited

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        stash[_CALLED] = True
        return function(*args, **kwargs)

    return call


def expect_called(item: pytest.Item, report: pytest.TestReport) -> None:
    """Fail the report of a test that is reported as passed although its function was never called.

    Runs last, so that other plugins' changes of the outcome are final. An expected failure (xfail) is not examined:
    pytest reports it as skipped.
    """
    if report.when != "call" or _CALLED in item.stash or not (report.passed or "XPASS(strict)" in str(report.longrepr)):
        return
    if isinstance(item, pytest.Function) and concerned(item.fixturenames):
        _fail(
            report,
            f"{item.name} passed, but its function was never called: "
            "a conftest or a plugin runs it in pytest's place (pytest_pyfunc_call, say)",
        )


def expect_no_mock(item: pytest.Item, report: pytest.TestReport) -> None:
    """Fail the report of a test that passed with a mock in place of ``amp``: the methods of a mock check nothing.

    Only runs that use this plugin are examined. A fixture ``amp`` of any other type is the project's own.
    """
    amp = getattr(item, "funcargs", {}).get("amp")
    module = type(amp).__module__
    if report.when == "call" and report.passed and module in ("unittest.mock", "mock", "mock.mock"):
        _fail(
            report,
            f"{item.name} passed with a {type(amp).__name__} in place of amp, whose checks check nothing: "
            "a fixture of the project takes this plugin's place",
        )


def expect_finite(item: pytest.Item, report: pytest.TestReport) -> None:
    """Fail the report of a test that passed and observed a nonfinite value or limit.

    ``inf > inf`` and ``nan > limit`` are both false, so that the comparison with the limit passes.
    """
    if report.when != "call" or not report.passed:
        return
    observed = item.stash.get(OBSERVATIONS, [])
    nonfinite = next((observation for observation in observed if not _is_finite(observation)), None)
    if nonfinite is None:
        return
    allowed = "" if nonfinite.allowed is None else f", and {nonfinite.allowed} is allowed"
    _fail(
        report,
        f"{nonfinite.key} is {nonfinite.value}{allowed}",
        label_before="rule",
        before="a value and its limit must be finite",
        likely="a division by zero, an overflow, or a limit that is made of what overflowed",
    )


def _is_finite(observation: Observation) -> bool:
    numbers = [observation.allowed, observation.value if observation.kind in _NUMBERS else None]
    return all(math.isfinite(number) for number in numbers if isinstance(number, (int, float)))


def _fail(report: pytest.TestReport, headline: str, **parts: str) -> None:
    report.outcome = "failed"
    report.longrepr = AmpFailure.message(headline, **parts)
    vars(report).pop("wasxfail", None)
