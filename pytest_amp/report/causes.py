"""Causes of failed tests: a failure on four devices is shown once, with one test to run again."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_amp.record import FIXED, Observation
from pytest_amp.report import newer
from pytest_amp.report.commands import bisect_command
from pytest_amp.report.findings import FindingText, findings_in
from pytest_amp.report.places import without_places
from pytest_amp.report.reasons import change_between
from pytest_amp.run.session import installed_torch

if TYPE_CHECKING:
    from pytest_amp.run.session import AmpSession


class Standing(enum.Enum):
    """Knowledge about a cause, in the order in which causes are shown."""

    UNEXPLAINED = "unexplained"
    EXPLAINED = "explained"
    FIXED = "fixed upstream"


#: A part of a failure: its label is padded to nine characters, and may have two words.
_PART = re.compile(r"^  (?P<label>\S.{8}) (?P<text>\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Cause:
    """Cause of one or more failed tests, in the words of the first of them.

    ``parts`` are the lines of its message by label (``now``, ``likely``, ``rerun``), ``places`` devices and dtypes.
    ``reason`` is the known explanation, ``bisect`` a command that finds the release which introduced it. ``findings``
    are those of ``amp.check``.
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
        """Return ``4 tests on cpu, fake-cuda in bf16, fp16``; pairs unless all combinations of both occur."""
        tests = "1 test" if len(self.tests) == 1 else f"{len(self.tests)} tests"
        pairs = [place.rpartition("-") for place in self.places]
        devices, dtypes = (list(dict.fromkeys(pair[index] for pair in pairs)) for index in (0, 2))
        if len(self.places) == len(devices) * len(dtypes):
            return f"{tests} on {', '.join(devices)} in {', '.join(dtypes)}"
        return f"{tests} on {', '.join(self.places)}"


@dataclass(frozen=True)
class _Failed:
    test: str
    target: str
    family: str
    text: str


def causes(session: AmpSession) -> list[Cause]:
    """Return the causes of a run's failures, unexplained ones first."""
    groups: dict[tuple[str, str], list[_Failed]] = {}
    for test in dict.fromkeys(test for test, _ in session.tally.failures):
        target, family, text = session.tally.texts[test]
        failed = _Failed(test, target, family, text.strip().removeprefix("Failed: "))
        groups.setdefault((failed.family, without_places(_what(failed.text))), []).append(failed)
    found = [_cause(group, session) for group in groups.values()]
    order = [*Standing]
    return sorted(found, key=lambda cause: (order.index(cause.standing), -len(cause.tests)))


def by_standing(found: Iterable[Cause]) -> dict[Standing, list[Cause]]:
    """Group causes by standing."""
    groups: dict[Standing, list[Cause]] = {}
    for cause in found:
        groups.setdefault(cause.standing, []).append(cause)
    return groups


def _what(text: str) -> str:
    first = next(iter(text.splitlines()), "")
    return first.removeprefix("AmpFailure: ").removeprefix(FIXED)


def _cause(group: list[_Failed], session: AmpSession) -> Cause:
    first = group[0]
    parts = {}
    if first.text.startswith("AmpFailure: "):
        parts = {found["label"].strip(): found["text"] for found in _PART.finditer(first.text)}
    findings = findings_in(first.text)
    parts = {label: text for label, text in parts.items() if not findings or label not in ("error", "warning")}
    reason = _reason(group, session)
    standing = Standing.UNEXPLAINED if reason is None else Standing.EXPLAINED
    if first.text.startswith(FIXED):
        standing = Standing.FIXED
    return Cause(
        standing,
        _what(first.text),
        parts,
        tuple(failed.test for failed in group),
        tuple(sorted({failed.target for failed in group})),
        reason,
        bisect_command(first.test, first.target, parts.get("rerun"), _earlier(session), installed_torch()),
        findings,
    )


def failed(session: AmpSession) -> list[tuple[str, str]]:
    """Return failed tests, each with the first line of its message, except those red for a fixed fault."""
    return [(test, why) for test, why in session.tally.failures if not why.startswith(FIXED)]


def _earlier(session: AmpSession) -> str:
    """Return the release to compare with: the baseline's, else the last that the data covers."""
    if session.baseline is not None:
        return str(session.baseline.provenance.get("torch", ""))
    return f"{newer.last_known()}.0"


def _reason(group: list[_Failed], session: AmpSession) -> str | None:
    """Return the known reason of a fact that the message names; None without one."""
    tests = {failed.test: failed.text for failed in group}
    facts = [(tests[test], fact) for test, fact in session.tally.observations.values() if test in tests]
    known = (known_reason(text, [fact], session) for text, fact in facts)
    return next((reason for reason in known if reason is not None), None)


def known_reason(text: str, observations: Iterable[Observation], session: AmpSession) -> str | None:
    """Return the known reason of the first of ``observations`` that a failure's message names."""
    named = (fact for fact in observations if fact.name in text)
    known = (change_between(fact, _earlier(session), installed_torch()) for fact in named)
    return next((reason for reason in known if reason is not None), None)


def remark() -> str | None:
    """Return the remark for a run on a torch that is newer than the data; None otherwise."""
    known = newer.newer_than_known(installed_torch())
    if known is None:
        return None
    return f"{known}: what is unexplained here may be a change that torch made on purpose"
