"""Causes of failed tests: tests that fail with the same message on several targets are shown as one entry."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_amp.record import FIXED, Observation, Record
from pytest_amp.report import newer
from pytest_amp.report.cells import without_places
from pytest_amp.report.commands import bisect_command
from pytest_amp.report.findings import FindingText, findings_in
from pytest_amp.report.reasons import change_between
from pytest_amp.run.result import FailedTest, Run
from pytest_amp.text.amounts import counted
from pytest_amp.text.quoted import printable


class Standing(enum.Enum):
    """Status of a cause. Reports show causes in the order of this enumeration."""

    UNEXPLAINED = "unexplained"
    EXPLAINED = "explained"
    FIXED = "fixed upstream"


#: Labelled line of a failure's message. The label is padded to nine characters, and may contain a space.
_PART = re.compile(r"^  (?P<label>\S.{8}) (?P<text>\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Cause:
    """Cause of one or more failed tests, described by the message of the first test.

    ``parts`` are the lines of that message by label (``now``, ``likely``, ``rerun``). ``places`` are the targets on
    which the tests failed (``cpu-bf16``). ``reason`` is the known explanation, and ``bisect`` a command that finds the
    release which introduced the failure. ``findings`` are those of ``amp.check``.
    """

    standing: Standing
    what: str
    parts: dict[str, str]
    tests: tuple[str, ...]
    places: tuple[str, ...]
    reason: str | None
    bisect: str | None
    findings: tuple[FindingText, ...] = ()

    @property
    def count(self) -> str:
        """Return ``4 tests on cpu, fake-cuda in bf16, fp16``, or a list of targets if a combination is missing."""
        tests = counted(len(self.tests), "test")
        pairs = [place.rpartition("-") for place in self.places]
        devices, dtypes = (list(dict.fromkeys(pair[index] for pair in pairs)) for index in (0, 2))
        if len(self.places) == len(devices) * len(dtypes):
            return f"{tests} on {', '.join(devices)} in {', '.join(dtypes)}"
        return f"{tests} on {', '.join(self.places)}"


def causes(run: Run) -> list[Cause]:
    """Return the causes of a run's failures, unexplained ones first."""
    groups: dict[tuple[str, str], list[FailedTest]] = {}
    for failure in _first_of_each(run.failures):
        groups.setdefault((failure.family, without_places(_headline(_message(failure)))), []).append(failure)
    order = [*Standing]
    result = [_cause(group, run) for group in groups.values()]
    return sorted(result, key=lambda cause: (order.index(cause.standing), -len(cause.tests)))


def _first_of_each(failures: Iterable[FailedTest]) -> list[FailedTest]:
    """Return the first failure of each test."""
    first: dict[str, FailedTest] = {}
    for failure in failures:
        first.setdefault(failure.test, failure)
    return [*first.values()]


def by_standing(causes: Iterable[Cause]) -> dict[Standing, list[Cause]]:
    """Group causes by standing."""
    groups: dict[Standing, list[Cause]] = {}
    for cause in causes:
        groups.setdefault(cause.standing, []).append(cause)
    return groups


def _message(failure: FailedTest) -> str:
    return failure.text.strip().removeprefix("Failed: ")


def _headline(text: str) -> str:
    first = next(iter(text.splitlines()), "")
    return first.removeprefix("AmpFailure: ").removeprefix(FIXED)


def _cause(group: list[FailedTest], run: Run) -> Cause:
    first, text = group[0], _message(group[0])
    parts = {}
    if text.startswith("AmpFailure: "):
        parts = {part["label"].strip(): part["text"] for part in _PART.finditer(text)}
    findings = findings_in(text)
    parts = {label: part for label, part in parts.items() if not findings or label not in ("error", "warning")}
    earlier = earlier_torch(None if run.difference is None else run.difference.old)
    reason = _reason(group, run, earlier)
    standing = Standing.UNEXPLAINED if reason is None else Standing.EXPLAINED
    if text.startswith(FIXED):
        standing = Standing.FIXED
    return Cause(
        standing,
        _headline(text),
        parts,
        tuple(failure.test for failure in group),
        tuple(sorted({failure.target for failure in group})),
        reason,
        bisect_command(first.test, first.target, parts.get("rerun"), earlier, run.torch),
        findings,
    )


def failed(run: Run) -> list[tuple[str, str]]:
    """Return failed tests with the first lines of their messages, without those that fail because a fault is fixed."""
    return [(failure.test, failure.reason) for failure in run.failures if not failure.reason.startswith(FIXED)]


def earlier_torch(baseline: Record | None) -> str:
    """Return the release of torch to compare with: that of the baseline, or the latest in the package's data."""
    if baseline is not None:
        return str(baseline.provenance.get("torch", ""))
    return f"{newer.last_known()}.0"


def _reason(group: list[FailedTest], run: Run, earlier: str) -> str | None:
    """Return the known reason of the first observation that a message of ``group`` names; None if there is none."""
    texts = {failure.test: _message(failure) for failure in group}
    facts = [(texts[test], fact) for fact in run.record.observations if (test := run.tests[fact.key]) in texts]
    known = (known_reason(text, [fact], earlier, run.torch) for text, fact in facts)
    return next((reason for reason in known if reason is not None), None)


def known_reason(text: str, observations: Iterable[Observation], earlier: str, torch: str) -> str | None:
    """Return the known reason of the first of ``observations`` that a failure's message names.

    ``earlier`` and ``torch`` are the releases between which its value changed.
    """
    named = (fact for fact in observations if fact.name in text)
    known = (change_between(fact, earlier, torch) for fact in named)
    return next((reason for reason in known if reason is not None), None)


def remark(torch: str) -> str | None:
    """Return a remark if ``torch`` is newer than the package's data; None otherwise."""
    known = newer.newer_than_known(torch)
    if known is None:
        return None
    return f"{known}: what is unexplained here may be a change that torch made on purpose"


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
