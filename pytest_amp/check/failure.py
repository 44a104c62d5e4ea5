"""Failure of ``amp.check``, which lists all errors, worst first."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_amp.check.entry import Entry
from pytest_amp.failure import AmpFailure
from pytest_amp.text import amounts
from pytest_amp.text.quoted import printable

#: Entries that are shown with all parts; the rest get a line each, so that a failure fits a screen.
SHOWN = 4
#: Lines for the remaining entries.
LISTED = 12


class CheckFailure(AmpFailure):
    """Failure with several entries, each with its message, its parts and its page."""

    def __init__(self, what: str, entries: Sequence[Entry], *, now: str, accept: str | None) -> None:
        """Keep the entries, worst first."""
        self.entries = tuple(entries)
        super().__init__(what, now=now, accept=accept)

    def _text(self) -> str:
        lines = [f"AmpFailure: {self.what}"]
        for entry in self.entries[:SHOWN]:
            lines += [f"  {line}" for line in entry.lines()]
        rest = self.entries[SHOWN:]
        lines += [f"  {entry.severity.value:<9} {entry.kind} {entry.place}: {entry.message}" for entry in rest[:LISTED]]
        if len(rest) > LISTED:
            lines.append(f"  and {len(rest) - LISTED} more")
        lines += [f"  {label:<9} {text}" for label, text in self.parts.items() if text is not None]
        return "\n".join(printable(" ".join(line.splitlines()).expandtabs()) for line in lines)


def counted(entries: Sequence[Entry]) -> str:
    """Return the number of errors and warnings, in words."""
    errors = sum(entry.is_error for entry in entries)
    parts = [(errors, "error"), (len(entries) - errors, "warning")]
    return " and ".join(amounts.counted(count, name) for count, name in parts if count) or "no finding"
