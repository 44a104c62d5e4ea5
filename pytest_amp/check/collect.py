"""Collector of check results: failures become entries, and each check a line of the report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from pytest_amp.account import receive
from pytest_amp.cases import in_one_line
from pytest_amp.check.entry import Entry, entry_of_failure, entry_of_finding, kind_of_check
from pytest_amp.check.report import CheckLine
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.lint import Finding, Severity
from pytest_amp.numerics.draws import NotReplayed
from pytest_amp.record import Better, Observation
from pytest_amp.scaler import LowLoss, SwallowedOverflow
from pytest_amp.torch_private import PrivateApiGone

_Result = TypeVar("_Result")

#: Warnings of the checks themselves, shown in the check's line. The linter has its own rule for a low-precision loss.
_OF_CHECKS = (LowLoss, SwallowedOverflow, NotReplayed)


@dataclass
class Collector:
    """Lines and entries of one call of ``amp.check``.

    ``observations`` are those of the test, extended by the checks.
    """

    observations: list[Observation]
    lines: list[CheckLine] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def run(self, check: str, function: Callable[[], _Result], *, detail: str) -> _Result | None:
        """Run one check and note its line, and its failure as an entry. Returns its result, None after a failure.

        A check that calls ``pytest.skip`` counts as not run; a missing private API of torch is passed on unchanged.
        """
        before, began, messages = len(self.observations), time.perf_counter(), list[str]()
        result, verdict = None, "pass"
        try:
            result, messages = _heard(function)
        except pytest.skip.Exception as skipped:
            verdict, detail = "not run", str(skipped)
        except AmpFailure as failure:
            receive(failure)
            verdict, detail = "red", failure.what
            self.entries.append(entry_of_failure(check, failure))
        except AmpUsageError as refusal:
            verdict, detail = "red", str(refusal)
            self.entries.append(_refused(check, str(refusal)))
        except PrivateApiGone:
            raise
        except Exception as error:  # noqa: BLE001  # a model, or torch with it, may raise anything
            verdict, detail = "red", in_one_line(error)
            self.entries.append(_refused(check, detail))
        margin = _margin(self.observations[before:], passed=verdict == "pass")
        seconds = time.perf_counter() - began
        self.lines.append(CheckLine(check, verdict, margin, "; ".join([detail, *messages]), seconds))
        return result

    def lint(self, name: str, function: Callable[[], Iterable[Finding]], *, detail: str) -> None:
        """Run one part of the linter; its line counts the findings."""
        findings = self.run(name, lambda: tuple(function()), detail=detail)
        named = (entry_of_finding(finding, check=name) for finding in findings or ())
        entries = [entry for entry in named if entry not in self.entries]
        self.entries += entries
        if entries:
            kinds = ", ".join(dict.fromkeys(entry.kind for entry in entries))
            self.retell(_verdict(entries), detail=f"{len(entries)} of {kinds}")

    def replace_entries(self, entries: Sequence[Entry]) -> None:
        """Replace the entries, whose harm was measured; the lines of the linter get the verdicts of their findings."""
        self.entries[:] = entries
        for index, line in enumerate(self.lines):
            findings = [entry for entry in entries if entry.check == line.check]
            if findings:
                self.lines[index] = replace(line, verdict=_verdict(findings))

    def retell(self, verdict: str, *, detail: str | None = None, margin: float | None = None) -> None:
        """Change the verdict and the text of the last check's line."""
        line = self.lines[-1]
        margin = line.margin if margin is None else margin
        self.lines[-1] = CheckLine(line.check, verdict, margin, detail or line.detail, line.seconds)

    def skip(self, check: str, reason: str) -> None:
        """Note a check that is left out, with the reason."""
        self.lines.append(CheckLine(check, "not run", None, reason, 0.0))


def _verdict(entries: Sequence[Entry]) -> str:
    return "red" if any(entry.is_error for entry in entries) else "warning"


def _refused(check: str, message: str) -> Entry:
    return Entry(
        kind=kind_of_check(check),
        severity=Severity.ERROR,
        module="",
        site="",
        message=f"the check could not run: {message}",
        is_refusal=True,
    )


def _heard(function: Callable[[], _Result]) -> tuple[_Result, list[str]]:
    """Call a function; return its result and the checks' warnings. All other warnings are issued again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SwallowedOverflow)
        warnings.simplefilter("always", NotReplayed)
        warnings.simplefilter("always", LowLoss)
        result = function()
    messages = []
    for warning in caught:
        if issubclass(warning.category, _OF_CHECKS):
            messages += [str(warning.message)] if warning.category is not LowLoss else []
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return result, messages


def _margin(observations: Iterable[Observation], *, passed: bool) -> float | None:
    """Return the largest used share of an allowed error or number among the observations.

    If the check passed, shares above 1 are left out: the check has accepted them for another reason.
    """
    shares = [
        observation.value / observation.allowed
        for observation in observations
        if observation.allowed
        and observation.better is not Better.HIGHER
        and isinstance(observation.value, (int, float))
    ]
    return max((share for share in shares if share <= 1 or not passed), default=None)
