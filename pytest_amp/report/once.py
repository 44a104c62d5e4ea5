"""Failures of one cause, as pytest shows them: the first with its whole message, the others in two lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_amp.quoted import printable
from pytest_amp.report.causes import causes

if TYPE_CHECKING:
    from pytest_amp.session import AmpSession

#: Of so many ``-v`` on the command line every failure is shown whole.
WHOLE = 2


def shorten(session: AmpSession, terminal: pytest.TerminalReporter) -> None:
    """Leave of each failed check whose cause was shown before its first line and the test that shows it.

    A failure without the five parts of a message is shown as it is. Files such as JUnit's were written before.
    """
    if session.config.get_verbosity() >= WHOLE:
        return
    first = {test: cause.tests[0] for cause in causes(session) if cause.parts for test in cause.tests[1:]}
    for report in terminal.stats.get("failed", ()):
        if report.when == "call" and report.nodeid in first:
            headline = next(iter(session.tally.texts[report.nodeid][2].strip().splitlines()), "")
            report.longrepr = printable(headline) + f"\n  as        {printable(first[report.nodeid])}"
