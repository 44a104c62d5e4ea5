"""Failures that pytest did not receive: a test that passes although one of its checks failed is made to fail."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_amp.account import Account, AccountEntry, receive
from pytest_amp.failure import AmpFailure
from pytest_amp.run.identity import INFO
from pytest_amp.run.session import Messages


def fail_unreceived(
    item: pytest.Item,
    call: pytest.CallInfo[None],
    report: pytest.TestReport,
    account: Account,
    messages: Messages,
) -> None:
    """Remove reported failures from the account, and fail ``report`` if it omits a failure of its test.

    A failure after the end of its test (in a thread that outlives it, or in a late finalizer) fails the run.
    """
    if call.excinfo is not None:
        receive(call.excinfo.value)
    lost = account.lost()
    if not lost:
        return
    of_test = [failure for failure in lost if failure.test in (item.nodeid, "")]
    account.settle(lost)
    _blame(messages, [failure for failure in lost if failure not in of_test])
    if of_test and not report.failed and not (report.skipped and hasattr(report, "wasxfail")):
        report.outcome = "failed"
        report.longrepr = "\n".join(failure.message() for failure in of_test)
        vars(report).pop("wasxfail", None)


def close(account: Account, messages: Messages) -> None:
    """Fail the run for failures that remain at its end: from a finalizer of the session, or a late deletion."""
    _blame(messages, account.close())


def say_failed(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Note on the report of a test that one of its checks failed, even if other plugins change the report."""
    raised = call.excinfo is not None and isinstance(call.excinfo.value, AmpFailure)
    text = str(call.excinfo.value) if raised and call.excinfo is not None else str(report.longrepr)
    if INFO in item.stash and report.failed and text.startswith("AmpFailure"):
        report.amp["failed"] = text.splitlines()[0]


def _blame(messages: Messages, failures: Iterable[AccountEntry]) -> None:
    for failure in failures:
        first = next(iter(failure.text.splitlines()), "")
        where = f" in {failure.place}" if failure.place else ""
        messages.problem(
            f"{failure.test or 'after the last test'}: a check failed{where}, and nobody received it: {first}"
        )
