"""Shortening of failures with the same cause in pytest's output: all but the first have three lines."""

from __future__ import annotations

from pytest_amp.report.causes import causes
from pytest_amp.run.result import Run
from pytest_amp.text.quoted import printable


def shortened(run: Run) -> dict[str, str]:
    """Return the short text of each failed test whose cause an earlier test has shown: message, that test, command.

    A failure without the five parts of a message stays unchanged. Files such as JUnit's were written before.
    """
    first = {test: cause.tests[0] for cause in causes(run) if cause.parts for test in cause.tests[1:]}
    texts = {failure.test: failure.text for failure in run.failures}
    return {test: _short(texts[test], shown) for test, shown in first.items()}


def _short(text: str, shown: str) -> str:
    headline, *parts = text.strip().splitlines() or [""]
    command = [line for line in parts if line.startswith("  rerun ")]
    return "\n".join(map(printable, [headline, f"  same as   {shown}", *command]))
