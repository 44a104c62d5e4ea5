"""Frozen result of a run, which is the only input of the reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_amp.known.rows import Known
from pytest_amp.record import Difference, Record

#: Target and family, such as ``("cpu-bf16", "rules")``.
Place = tuple[str, str]
#: Outcomes of executed checks.
EXECUTED = ("passed", "failed", "error", "xfailed", "fixed")
#: Outcomes of a test that has ended.
ENDED = (*EXECUTED, "skipped", "inconclusive")


@dataclass(frozen=True)
class FailedTest:
    """Failure of a test, in its call or in its teardown; a test that fails in both has two.

    ``reason`` is the first line of the message of this failure. ``text`` is the whole message of the first failure of
    the test, which may be the other one.
    """

    test: str
    target: str
    family: str
    reason: str
    text: str


@dataclass(frozen=True)
class AcceptedFault:
    """Known fault of --amp-known.

    ``failed`` is the number of its tests that failed as expected; None if none of its tests ran. ``may_exist`` is False
    if the baseline has no observation that matches a key of the fault: the key may be misspelt.
    """

    fault: Known
    failed: int | None
    may_exist: bool


@dataclass(frozen=True)
class Run:
    """Result of a run, from which the reports are created.

    - ``record``: the observations, the provenance and the failed tests.
    - ``torch``: the installed version.
    - ``baseline``: the requested baseline file, None if none was requested.
    - ``difference``: the difference from the baseline, None without a readable baseline.
    - ``problems``, ``notes``: messages about the run; it fails if there is a problem.
    - ``failures``: the failures of tests, in the order in which reports show them.
    - ``counts``: the number of tests for each target and family, by outcome.
    - ``deselected``, ``skips``: the number of tests that did not run, by reason.
    - ``skipped_modules``: the reason for each module that was skipped as a whole.
    - ``speed``: the speed mode and its reason, None if it was not resolved.
    - ``known``: the faults of --amp-known.
    - ``tests``: the test of each observation, by the observation's key.
    - ``earlier_times``: the provenances of earlier runs with whose times pytest-benchmark compares those of this run.
    - ``written``: the files that the run has written.
    - ``accepted``: the number of observations that --amp-accept changed, None if it changed no file.
    """

    record: Record
    torch: str
    baseline: Path | None
    difference: Difference | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    failures: tuple[FailedTest, ...]
    counts: Mapping[Place, Counter[str]]
    deselected: Mapping[str, int]
    skips: Counter[str]
    skipped_modules: Mapping[str, str]
    speed: str | None
    known: tuple[AcceptedFault, ...]
    tests: Mapping[str, str]
    earlier_times: tuple[Mapping[str, Any], ...]
    written: tuple[str, ...]
    accepted: int | None

    @property
    def is_red(self) -> bool:
        """Return whether a test failed, the run has a problem, or the run is not complete."""
        return bool(self.failures or self.problems or not self.record.complete)


def most_common(counts: Counter[str]) -> list[tuple[str, int]]:
    """Sort by decreasing count, then by name: the order in which workers report is nondeterministic."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
