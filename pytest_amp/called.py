"""Tests that check nothing: whose function nobody called, or which have a mock in place of ``amp``."""

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
    """The function of ``item``, which notes that it is called; it is a coroutine function where that is one."""
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
    """Make red the report of a test that is said to have passed although nobody called its function.

    After whoever else has had a say in it: one that was expected to fail has not failed, and has not passed either.
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

    In a run that uses this plugin. Any other fixture of that name is a project's own matter.
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
