"""Result of a run, as one frozen value, which is the only input of the reports."""

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
    """Failure of a test, in its call or in its teardown.

    ``reason`` is the first line of this failure's message, ``text`` the whole message of the test's first failure.
    """

    test: str
    target: str
    family: str
    reason: str
    text: str


@dataclass(frozen=True)
class AcceptedFault:
    """Fault of --amp-known, with the number of its tests that failed; None if none of them ran.

    ``may_exist`` is False if its key names an observation that the baseline lacks: the key may be misspelt.
    """

    fault: Known
    failed: int | None
    may_exist: bool


@dataclass(frozen=True)
class Run:
    """Result of a run, from which the reports are made.

    ``record`` has the observations, the provenance and the failed tests. ``torch`` is the installed version.
    ``baseline`` is the requested file, and ``difference`` is None if there is none that could be read. ``counts`` has
    the number of tests by place and outcome; ``deselected`` and ``skips`` count the tests that did not run, by reason.
    ``skipped_modules`` has the reason of each module that skipped itself. ``tests`` maps the key of an observation to
    its test. ``failures`` are in the order of the reports. ``earlier_times`` are provenances of times with which
    pytest-benchmark compares this run's. ``written`` are the written files. ``accepted`` counts the observations that
    --amp-accept changed; None if it changed no file. ``problems`` fail the run, ``notes`` do not.
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
    """Sort by count, then by name, so that the order does not depend on the speed of workers."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
