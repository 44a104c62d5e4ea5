"""Exceptions of checks: AmpFailure (torch broke a promise) and AmpUsageError (bad arguments)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_amp.account import note, receive
from pytest_amp.text.quoted import printable

#: Likely cause of a difference between two equal runs, in a check's message.
UNSEEDED = "random numbers that torch does not seed (of a generator that seeds itself, say)"


# The class of pytest.fail is public, but has no name that mypy can subclass.
class AmpFailure(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """A broken promise in at most a dozen lines: what broke, and up to five parts (before, now, likely, rerun, accept).

    Like ``pytest.fail``, it is not an ``Exception``: code under test that catches those does not
    catch it. Each argument is one line; the plugin fills ``rerun`` with the failing test where it is
    left out. ``label_before`` names the reference of the check: ``rule``, ``baseline``, ``exact``.
    ``details`` are further lines by label, after ``now``. ``argument`` names the argument of the check that
    accepts what it reports; it is shown in place of ``accept``.
    """

    def __init__(  # noqa: PLR0913  # the parts of the message
        self,
        what: str,
        *,
        before: str | None = None,
        now: str | None = None,
        likely: str | None = None,
        rerun: str | None = None,
        accept: str | None = None,
        argument: str | None = None,
        label_before: str = "before",
        site: str | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the parts; ``str()`` joins them. ``site`` is the line of the user's code, if one is known."""
        self.what = what
        self.site = site
        self.argument = argument
        self.parts: dict[str, str | None] = {
            label_before: before,
            "now": now,
            **(details or {}),
            "line": site,
            "likely": likely,
            "rerun": rerun,
            "accept": accept if argument is None else argument,
        }
        super().__init__(self._text(), pytrace=False)
        #: Number of the failure on the account of unreceived failures (``pytest_amp.account``).
        self.number = note(self._text())

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copies that construct no failure: one that another process sends must not be noted again."""
        return _copy, (type(self), self.args, self.__dict__)

    @classmethod
    def message(cls, what: str, **parts: Any) -> str:
        """Return the text of a failure that is reported and not raised."""
        failure = cls(what, **parts)
        receive(failure)
        return str(failure)

    def rerun_with(self, command: str) -> None:
        """Set ``command`` if the check itself named none."""
        if self.parts["rerun"] is None:
            self.parts["rerun"] = command
            self.msg = self._text()

    def likely_is(self, reason: str) -> None:
        """Put the reason that is known in the place of the likely cause."""
        self.parts["likely"] = reason
        self.msg = self._text()

    def likely_with(self, remark: str) -> None:
        """Add a remark to the likely cause, once."""
        likely = self.parts["likely"]
        if likely is None or remark not in likely:
            self.parts["likely"] = remark if likely is None else f"{likely}; {remark}"
            self.msg = self._text()

    def _text(self) -> str:
        lines = [f"AmpFailure: {self.what}"]
        lines += [f"  {label:<9} {text}" for label, text in self.parts.items() if text is not None]
        # A part may quote an error of torch, whose message may have several lines.
        return "\n".join(printable(" ".join(line.splitlines()).expandtabs()) for line in lines)


def _copy(kind: type[AmpFailure], args: tuple[Any, ...], state: dict[str, Any]) -> AmpFailure:
    failure = kind.__new__(kind, *args)
    failure.args = args
    failure.__dict__.update(state)
    return failure


class AmpUsageError(ValueError):
    """Bad argument of a check or of a hook: one line with the value and what is expected in its place.

    It says nothing about torch. The modules between the test and the line that raises it set
    ``__tracebackhide__ = is_usage_error``, so that pytest shows the test's own line and no other.
    """


def is_usage_error(raised: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether pytest leaves a module's frames out of a traceback: it does so for AmpUsageError."""
    return raised.errisinstance(AmpUsageError)
