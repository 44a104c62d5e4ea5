"""Shortening of failures with one cause in pytest's output: the first in full, the others in three lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_amp.report.causes import causes
from pytest_amp.text.quoted import printable

if TYPE_CHECKING:
    from pytest_amp.run.session import AmpSession

#: Number of ``-v`` from which every failure is shown in full.
WHOLE = 2


def shorten(session: AmpSession, terminal: pytest.TerminalReporter) -> None:
    """Replace each failed check whose cause was already shown by its first line, that test, and its own command.

    A failure without the five parts of a message stays unchanged. Files such as JUnit's were written before.
    """
    if session.config.get_verbosity() >= WHOLE:
        return
    first = {test: cause.tests[0] for cause in causes(session) if cause.parts for test in cause.tests[1:]}
    for report in terminal.stats.get("failed", ()):
        if report.when == "call" and report.nodeid in first:
            headline, *parts = session.tally.texts[report.nodeid][2].strip().splitlines() or [""]
            command = [line for line in parts if line.startswith("  rerun ")]
            lines = [headline, f"  as        {first[report.nodeid]}", *command]
            report.longrepr = "\n".join(map(printable, lines))
