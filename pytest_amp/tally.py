"""What ran, family by family and target by target, and what that means for the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from pytest_amp.record import Observation

INCONCLUSIVE = "inconclusive: "


@dataclass(frozen=True)
class TestInfo:
    """What a report of an amp test carries to the process that counts: plain JSON, so that it crosses to it."""

    target: str
    family: str
    test: str
    allowed_missing: bool = False


@dataclass
class Tally:
    """Counts over reports. ``outcomes`` per (target, family); ``reasons`` of what did not run."""

    outcomes: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    reasons: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    exempt: set[tuple[str, str]] = field(default_factory=set)
    tests: set[tuple[str, str, str]] = field(default_factory=set)
    partial: set[tuple[str, str, str]] = field(default_factory=set)
    observations: dict[str, tuple[str, Observation]] = field(default_factory=dict)
    claims: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, report: pytest.TestReport, data: Mapping[str, object]) -> list[Observation]:
        """Count one report of an amp test; the observations that it brought."""
        info = TestInfo(**data["test"])  # type: ignore[arg-type]
        place = (info.target, info.family)
        counts = self.outcomes.setdefault(place, Counter())
        outcome = _outcome(report)
        if outcome is not None:
            counts[outcome] += 1
        if outcome in ("skipped", "inconclusive"):
            self.reasons.setdefault(place, Counter())[_reason(report)] += 1
        if info.allowed_missing:
            self.exempt.add(place)
        test = (info.target, info.family, info.test)
        if outcome is not None:
            (self.tests if outcome == "passed" else self.partial).add(test)
        brought = [Observation.from_json(item) for item in data["observations"]]  # type: ignore[attr-defined]
        for observation in brought:
            claimed = self.observations.get(observation.key)
            if claimed is not None and claimed[0] != report.nodeid:
                self.claims[observation.key] = (claimed[0], report.nodeid)
            self.observations[observation.key] = (report.nodeid, observation)
        return brought

    def unexecuted(self) -> list[str]:
        """A line for each target and family that was asked for and of which not one check was executed."""
        lines = []
        for place, counts in sorted(self.outcomes.items()):
            if place in self.exempt or any(counts[name] for name in ("passed", "failed", "error", "xfailed")):
                continue
            target, family = place
            reasons = "; ".join(f"{reason} ({n})" for reason, n in self.reasons.get(place, Counter()).most_common(3))
            lines.append(f"{family} on {target}: {sum(counts.values())} selected, not one executed: {reasons}")
        return lines

    def clashes(self) -> list[str]:
        """A line for each key that two tests claim."""
        return [f"{key}: observed by {first} and by {second}" for key, (first, second) in sorted(self.claims.items())]

    def gone(self, baseline: Iterable[Observation], partial: set[tuple[str, str, str]]) -> list[Observation]:
        """Observations of the baseline whose test ran whole on their target and no longer made them.

        ``partial`` has the tests of which some parameters were deselected; those of which some were
        skipped or failed are known here.
        """
        ran = self.tests - self.partial - partial
        return [
            observation
            for observation in baseline
            if observation.key not in self.observations
            and ("-".join(observation.target), observation.family, observation.test) in ran
        ]


def _outcome(report: pytest.TestReport) -> str | None:
    """The one thing that a report adds to the counts; None for a phase that says nothing new."""
    if report.when == "call":
        if hasattr(report, "wasxfail"):
            return "xfailed" if report.skipped else "failed"
        if report.skipped and _reason(report).startswith(INCONCLUSIVE):
            return "inconclusive"
        return report.outcome
    if report.failed:
        return "error"
    if report.when == "setup" and report.skipped:
        return "xfailed" if hasattr(report, "wasxfail") else "skipped"
    return None


def _reason(report: pytest.TestReport) -> str:
    """The reason of a skip, without the file and line that pytest puts before it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    return text.removeprefix("Skipped: ")
