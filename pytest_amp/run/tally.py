"""Counts of a run by family and target, and the problems that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from pytest_amp.known.rows import Known
from pytest_amp.precision import LOW
from pytest_amp.record import EXACT, FAILING, FIXED, Observation, canonical
from pytest_amp.run.result import ENDED, EXECUTED, Place, most_common

INCONCLUSIVE = "inconclusive: "
#: Start of the reason for which a test is skipped after its device was lost.
NOT_RUN = "not run: "


@dataclass(frozen=True)
class TestInfo:
    """Identity of an amp test, which its report carries as JSON to the process that counts."""

    target: str
    family: str
    test: str
    allowed_missing: bool = False


@dataclass
class Tally:
    """Counts over the reports of a run. A *place* is (target, family)."""

    #: Number of tests with each outcome, by place.
    outcomes: dict[Place, Counter[str]] = field(default_factory=dict)
    #: Number of tests that checked nothing, by place and reason.
    reasons: dict[Place, Counter[str]] = field(default_factory=dict)
    #: Tests that have ended, by place, without duplicates: a test may have subtests, or be run again.
    ended: dict[Place, set[str]] = field(default_factory=dict)
    #: Places that may end without an executed check: a requirement is missing, and --amp-allow-missing names it.
    exempt: set[Place] = field(default_factory=set)
    #: Tests that passed, by (target, family, test without parameters).
    passed: dict[tuple[str, str, str], set[str]] = field(default_factory=dict)
    #: Observation and its test, by key.
    observations: dict[str, tuple[str, Observation]] = field(default_factory=dict)
    #: Pairs of tests that observe the same key, by key.
    claims: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Keys of tests by node id. Repetitions of a test have the same key.
    keys: dict[str, str] = field(default_factory=dict)
    #: Worker of each observation, by key: with --dist=each every worker makes every observation.
    workers: dict[str, str] = field(default_factory=dict)
    #: Data of the first report of each test: if its worker dies, no later report has any.
    begun: dict[str, Mapping[str, object]] = field(default_factory=dict)
    #: Number of outcomes of the tests that each row of --amp-known covers, by the row's name.
    known: dict[str, Counter[str]] = field(default_factory=dict)
    #: Failed tests in order, with the first line of the message, including strict expected failures that passed.
    failures: list[tuple[str, str]] = field(default_factory=list)
    #: The same messages by the key of the test, which, unlike a node id, does not depend on the location of the tests.
    failed: dict[str, str] = field(default_factory=dict)
    #: Failed tests: target, family, and the whole message.
    texts: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    #: Number of selected tests by (target, family), from the reports of the processes that run them.
    selected: dict[Place, int] = field(default_factory=dict)

    def add(self, report: pytest.TestReport, data: Mapping[str, object]) -> list[Observation]:
        """Count one report of an amp test; return its observations."""
        if report.when == "setup":
            self.begun[report.nodeid] = data
        info = TestInfo(**data["test"])  # type: ignore[arg-type]
        self.keys[report.nodeid] = str(data["key"])
        place = (info.target, info.family)
        counts = self.outcomes.setdefault(place, Counter())
        self.selected[place] = int(data["selected"])  # type: ignore[call-overload]
        outcome = _outcome(report)
        if outcome is not None:
            counts[outcome] += 1
        if outcome in ENDED:  # and not "rerun", the outcome of pytest-rerunfailures for a test that it runs again
            self.ended.setdefault(place, set()).add(report.nodeid)
        if outcome in ("skipped", "inconclusive"):
            self.reasons.setdefault(place, Counter())[_reason(report)] += 1
        for key in data.get("known", ()):  # type: ignore[attr-defined]
            self.known.setdefault(key, Counter())[outcome or ""] += 1
        if outcome in ("failed", "error", "fixed"):
            self.failures.append((report.nodeid, _headline(report)))
            self.texts.setdefault(report.nodeid, (info.target, info.family, _text(report)))
            self.failed.setdefault(str(data["key"]), _headline(report))
        if info.allowed_missing:
            self.exempt.add(place)
        if outcome == "passed":
            self.passed.setdefault((info.target, info.family, info.test), set()).add(report.nodeid)
        brought = [Observation.from_json(item) for item in data["observations"]]  # type: ignore[attr-defined]
        for observation in brought:
            self._claim(observation, report.nodeid, getattr(report, "worker_id", ""))
        return brought

    def observed(self) -> tuple[Observation, ...]:
        """Return every observation; workers have none."""
        return tuple(observation for _, observation in self.observations.values())

    def add_hang(self, node: str, info: TestInfo, key: str, message: str) -> None:
        """Count a test that never ended as an error."""
        self.outcomes.setdefault((info.target, info.family), Counter())["error"] += 1
        self.failures.append((node, message))
        self.texts.setdefault(node, (info.target, info.family, message))
        self.failed.setdefault(key, message)

    def _claim(self, observation: Observation, node: str, worker: str) -> None:
        """Store an observation, and note a clash: its key comes from another test, or the same test changed its value.

        A test may run several times: with pytest-repeat, or in several workers.
        """
        key = observation.key
        if key in self.observations:
            other, earlier = self.observations[key]
            differs = canonical(observation.value) != canonical(earlier.value)
            repeated = self.keys.get(other, other) == self.keys.get(node, node)
            if not repeated or (other != node and differs and observation.kind in EXACT):
                self.claims[key] = (other, node)
            elif other == node and worker != self.workers[key] and differs:
                self.claims[key] = (f"{node} in {self.workers[key]}", f"{node} in {worker}")
        self.observations[key], self.workers[key] = (node, observation), worker

    def unexecuted(self, selected: Mapping[Place, int]) -> list[str]:
        """Return a line for each requested target and family without an executed check.

        ``selected`` counts the selected tests, since those that a stopped run did not reach have no report.
        """
        lines = []
        for place in sorted(self.outcomes.keys() | selected.keys()):
            counts = self.outcomes.get(place, Counter())
            if place in self.exempt or any(counts[name] for name in EXECUTED) or self._is_lost(place):
                continue
            target, family = place
            common = most_common(self.reasons.get(place, Counter()))[:3]
            reasons = "; ".join(f"{reason} ({n})" for reason, n in common) or "the run stopped before"
            count = selected.get(place) or self.selected.get(place) or sum(counts.values())
            lines.append(f"{family} on {target}: {count} selected, not one executed: {reasons}")
        return lines

    def _is_lost(self, place: Place) -> bool:
        """Return whether the device of a place was lost before its first test, which is a problem of its own."""
        reasons = self.reasons.get(place, Counter())
        return bool(reasons) and all(reason.startswith(NOT_RUN) for reason in reasons)

    def unreported(self, selected: Mapping[Place, int]) -> list[str]:
        """Return a line for each target and family of which some selected tests have ended and others have not."""
        return [
            f"{family} on {target}: {count} selected, {ended} came to an end: the run stopped before, or another "
            "plugin kept them from running"
            for (target, family), count in sorted(selected.items())
            if 0 < (ended := len(self.ended.get((target, family), ()))) < count
        ]

    def unseen(self, skipped_modules: Mapping[str, tuple[str, str]]) -> list[str]:
        """Return a line for each module that was skipped during collection and whose family has no executed check."""
        executed = {family for (_, family), counts in self.outcomes.items() if any(counts[name] for name in EXECUTED)}
        return [
            f"{family}: no check was executed, {name} was skipped while it was collected: {reason}"
            for name, (family, reason) in sorted(skipped_modules.items())
            if family not in executed
        ]

    def inconclusive(self) -> list[str]:
        """Return a line for each target and family with undecided checks, for --amp-strict."""
        return [
            f"{family} on {target}: {counts['inconclusive']} inconclusive, which --amp-strict refuses"
            for (target, family), counts in sorted(self.outcomes.items())
            if counts["inconclusive"]
        ]

    def fixed(self, known: Iterable[Known]) -> list[str]:
        """Return a line for each known fault that is gone: all tests with its key passed."""
        return [
            f"known, and gone: {row.name}: {_all(self.known[row.name]['passed'])} passed; "
            f"remove the entry ({row.report})"
            for row in known
            if row.name in self.known and not self.known[row.name]["xfailed"]
        ]

    def clashes(self) -> list[str]:
        """Return a line for each key that two tests claim."""
        return [
            f"{key}: observed by {first} and by {second}; expected a name of its own in each"
            for key, (first, second) in sorted(self.claims.items())
        ]

    def uncompared(self, baseline: Iterable[Observation]) -> list[str]:
        """Return a line for each target whose observations are all missing in the baseline: nothing was compared.

        float32 and TF32 cannot be selected: a suite runs a few checks in them, which an older baseline may lack.
        """
        known = {observation.key: "-".join(observation.target) for observation in baseline}
        observed: dict[str, bool] = {}
        for key, (_, observation) in self.observations.items():
            target = "-".join(observation.target)
            observed[target] = observed.get(target, False) or key in known
        has = ", ".join(sorted(set(known.values()))) or "nothing"
        remaining = "none of these checks, but others on it"
        return [
            f"nothing on {target} could be compared: the baseline has "
            + (remaining if target in known.values() else f"none of it (it has {has})")
            for target, compared in sorted(observed.items())
            if not compared and target.rpartition("-")[2] in LOW
        ]

    def swallowed(self) -> list[str]:
        """Return a line for each difference from the baseline whose test passed: it swallowed the AmpFailure."""
        return [
            f"{o.key}: {o.verdict.value} from the baseline, and its test passed: it catches what a check raises, or "
            "checks in a thread of its own"
            for o in self.accepted()
            if o.verdict in FAILING
        ]

    def accepted(self) -> list[Observation]:
        """Return the observations of passed tests, which --amp-accept may store."""
        passed = {node for nodes in self.passed.values() for node in nodes} - self._failed_nodes()
        return [observation for node, observation in self.observations.values() if node in passed]

    def whole(self, created: Mapping[tuple[str, str, str], int]) -> set[tuple[str, str, str]]:
        """Return the tests, as (target, family, test), of which all parameters have passed."""
        failed = self._failed_nodes()  # such a test may also have passed: in a subtest, or before its teardown
        whole = {test: passed - failed for test, passed in self.passed.items()}
        return {test for test, passed in whole.items() if len(passed) >= created.get(test, len(passed) + 1)}

    def _failed_nodes(self) -> set[str]:
        return {node for node, _ in self.failures}

    def gone(self, baseline: Iterable[Observation], created: Mapping[tuple[str, str, str], int]) -> list[Observation]:
        """Return the baseline's observations that are gone: their test passed with all parameters without them.

        ``created`` counts the parameters of each test. If some of them were not selected, not reached, skipped or
        failed, it is unknown whether the observations are gone.
        """
        ran = self.whole(created)
        return [
            observation
            for observation in baseline
            if observation.key not in self.observations
            and ("-".join(observation.target), observation.family, observation.test) in ran
        ]


def _outcome(report: pytest.TestReport) -> str | None:
    """Return the outcome that a report adds to the counts; None for a phase without one."""
    if report.when == "call":
        if hasattr(report, "wasxfail"):  # a non-strict xfail that passes is XPASS, which does not fail a run
            return "xfailed" if report.skipped else "passed"
        if report.skipped and _reason(report).startswith(INCONCLUSIVE):
            return "inconclusive"
        return "fixed" if report.failed and _text(report).startswith(FIXED) else report.outcome
    if report.failed:
        return "error"
    # An xfail before the call (run=False, or a fixture that fails) has checked nothing.
    return "skipped" if report.when == "setup" and report.skipped else None


def _text(report: pytest.TestReport) -> str:
    """Return the message of a failure."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr if crash is None else crash.message)


def _headline(report: pytest.TestReport) -> str:
    """Return the first line of a failure's message."""
    return next(iter(_text(report).strip().splitlines()), "")


def _reason(report: pytest.TestReport) -> str:
    """Return the reason of a skip, without the file and line that pytest prepends."""
    if hasattr(report, "wasxfail"):
        return f"xfail: {report.wasxfail}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    return text.removeprefix("Skipped: ")


def _all(checks: int) -> str:
    return "its one check" if checks == 1 else f"all {checks} of its checks"
