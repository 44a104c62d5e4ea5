"""Tests that check nothing: their function was never called, or a mock replaces ``amp``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pytest_amp.failure import AmpFailure
from pytest_amp.fixtures import concerned

_CALLED = pytest.StashKey[bool]()


def noting(item: pytest.Function) -> Callable[..., Any]:
    """Return the function of ``item``, wrapped so that its call is noted; a coroutine function stays one."""
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
    """Make red the report of a test that is reported as passed although its function was never called.

    Runs last, so that other plugins' changes of the outcome are final. A test that was expected to fail has neither
    failed nor passed.
    """
    if report.when != "call" or _CALLED in item.stash or not (report.passed or "XPASS(strict)" in str(report.longrepr)):
        return
    if isinstance(item, pytest.Function) and concerned(item.fixturenames):
        report.outcome = "failed"
        report.longrepr = AmpFailure.message(
            f"{item.name} is said to have passed, and nobody called its function: "
            "a conftest or a plugin runs it in pytest's place (pytest_pyfunc_call, say)"
        )
        vars(report).pop("wasxfail", None)


def expect_no_mock(item: pytest.Item, report: pytest.TestReport) -> None:
    """Make red the report of a test that passed with a mock in place of ``amp``, whose checks check nothing.

    This applies to runs that use this plugin. Any other fixture of that name is the project's own.
    """
    amp = getattr(item, "funcargs", {}).get("amp")
    module = type(amp).__module__
    if report.when == "call" and report.passed and module in ("unittest.mock", "mock", "mock.mock"):
        report.outcome = "failed"
        report.longrepr = AmpFailure.message(
            f"{item.name} passed with a {type(amp).__name__} in place of amp, whose checks check nothing: "
            "a fixture of the project takes this plugin's place"
        )
        vars(report).pop("wasxfail", None)
