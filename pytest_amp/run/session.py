"""State of one run in this process, by part: each function of a run receives the parts that it needs.

Everything is imported and probed only when it is needed.
"""

from __future__ import annotations

import json
from collections import ChainMap, Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_amp.config import AmpConfig

if TYPE_CHECKING:
    from pytest_amp.account import Account
    from pytest_amp.precision import Precision
    from pytest_amp.record import Baseline, Observation, Record, Value
    from pytest_amp.run.resolution import Speed
    from pytest_amp.run.tally import Tally
    from pytest_amp.run.targets import Target


@dataclass
class Messages:
    """Messages about the run as a whole, each of them once."""

    #: Usage errors that are raised at the end of collection.
    usage_errors: list[str] = field(default_factory=list)
    #: Reasons for which the run fails even if every test passes.
    problems: list[str] = field(default_factory=list)
    #: Notes of the summary, which do not fail the run.
    notes: list[str] = field(default_factory=list)

    def usage_error(self, message: str) -> None:
        """Note a usage error once."""
        if message not in self.usage_errors:
            self.usage_errors.append(message)

    def problem(self, *messages: str) -> None:
        """Note reasons for which the run fails, each once."""
        self.problems += [message for message in dict.fromkeys(messages) if message not in self.problems]

    def note(self, *messages: str) -> None:
        """Note lines of the summary, each once."""
        self.notes += [message for message in dict.fromkeys(messages) if message not in self.notes]


class RequestedTargets:
    """Devices and precisions of the run, and whether speed is timed on them."""

    def __init__(
        self, options: AmpConfig, config: pytest.Config, messages: Messages, device_types: tuple[str, ...] = ()
    ) -> None:
        """Store the request; ``device_types`` are the names that the hook pytest_amp_devices yields."""
        self._options, self._config, self._messages = options, config, messages
        self.device_types = device_types
        #: Whether tests cannot run because a requested device or torch is missing; no further tests are collected.
        self.refused = False
        #: Mode of speed checks and its reason, once it is known; a controller receives it from a worker.
        self.speed_reason: str | None = None
        self._wide: dict[tuple[str, str], Target] = {}

    def refuse(self, message: str) -> None:
        """Note that no test can run, as a usage error."""
        self._messages.usage_error(message)
        self.refused = True

    @cached_property
    def low(self) -> tuple[Target, ...]:
        """Return every requested device and low precision; empty after a usage error."""
        from pytest_amp.run.resolution import Unavailable, resolve_targets

        try:
            return resolve_targets(self._options, self._config)
        except Unavailable as error:
            self.refuse(str(error))
            return ()

    def wide(self, target: Target, precision: Precision) -> Target:
        """Return the fp32 or tf32 target of a device, the same object each time, so that fixtures are shared."""
        from pytest_amp.run.targets import Target

        key = (target.device.key, precision.name)
        return self._wide.setdefault(key, Target(target.device, precision, target.missing, self._config))

    @cached_property
    def torch_problem(self) -> str | None:
        """Return why torch cannot be imported, in one line; None if it can."""
        try:
            import torch  # noqa: F401  # tests the import
        except Exception as error:  # noqa: BLE001  # a missing library raises OSError, a partial installation anything
            from pytest_amp.text.quoted import quoted_with_type

            reason = quoted_with_type(error)
            return f"torch cannot be imported ({reason}): pip install torch; `pytest-amp doctor` says more"
        return None

    @cached_property
    def speed(self) -> Speed:
        """Return whether speed is timed in this process, with the reason."""
        from pytest_amp.run.resolution import Speed, Unavailable, resolve_speed

        try:
            speed = resolve_speed(self._options, self._config, self.low)
        except Unavailable as error:
            self._messages.usage_error(str(error))
            speed = Speed("off", str(error))
        self.speed_reason = f"{speed.mode}: {speed.reason}"
        return speed


@dataclass
class Selection:
    """Counts of collected tests, which a worker sends to its controller."""

    #: Whether a test that uses this plugin has been collected.
    active: bool = False
    #: Number of tests that this plugin deselected, by reason.
    deselected: Counter[str] = field(default_factory=Counter)
    #: Number of tests by (target, family, test without parameters), selected or not.
    created: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    #: Number of tests selected to run, by (target, family).
    selected: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Modules of families that were skipped during their import: family and reason by node id.
    skipped_modules: dict[str, tuple[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the counts as JSON values."""
        return {
            "active": self.active,
            "deselected": dict(self.deselected),
            "created": [[*test, count] for test, count in self.created.items()],
            "selected": [[*place, count] for place, count in self.selected.items()],
            "skipped_modules": self.skipped_modules,
        }

    def merge(self, data: dict[str, Any]) -> None:
        """Merge the counts of a worker. Every worker collects all tests, so they are equal."""
        self.active = self.active or data["active"]
        self.deselected |= Counter(data["deselected"])
        self.created |= Counter({(target, family, test): count for target, family, test, count in data["created"]})
        self.selected |= Counter({(target, family): count for target, family, count in data["selected"]})
        self.skipped_modules |= {name: (family, reason) for name, (family, reason) in data["skipped_modules"].items()}


@dataclass
class Collected:
    """Items of this process between their collection and the first test."""

    #: Amp tests collected, items that anything deselected, and those that this plugin deselected itself.
    items: list[pytest.Item] = field(default_factory=list)
    deselected: list[pytest.Item] = field(default_factory=list)
    dropped: list[pytest.Item] = field(default_factory=list)
    #: Ids of the amp tests that remain.
    selected: set[str] = field(default_factory=set)
    #: Paths of families that are kept from being collected, with the problem in a line.
    left_out: dict[Path, str] = field(default_factory=dict)
    #: Whether collection was completed.
    ended: bool = False


@dataclass
class Isolation:
    """Damage that one test may do to others, or to the run after it."""

    #: Failures that have not reached pytest yet, while tests run in this process.
    account: Account | None = None
    #: Device name -> the test after which it no longer answered, and its error.
    poisoned: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Faults of the machine by their sentence, and lost devices by name: the message, and the tests that met them.
    faults: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    lost: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    #: Workers that ended after their device was lost.
    left: set[str] = field(default_factory=set)
    #: Whether this worker stays, although its device was lost: a new process could not use it, either.
    stays: bool = False


@dataclass
class Facts:
    """Facts that values of the run depend on: its provenance."""

    provenance: dict[str, Value] = field(default_factory=dict)
    #: Whether the provenance was sent to the controller with a report.
    sent: bool = False
    #: Provenance of the times with which pytest-benchmark compares this run's.
    earlier_times: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Ending:
    """End of the tests: by a signal, or by the last one."""

    #: Signal that ended the run.
    signal: int | None = None
    #: Whether all tests have ended, so that only the verdict and the files remain.
    finishing: bool = False


@dataclass
class Conclusion:
    """Verdict on the run, and what was written."""

    #: Exit status, once the run was judged.
    status: int | None = None
    #: Observations of the baseline whose tests no longer make them, and the record for the requested files.
    gone: list[Observation] = field(default_factory=list)
    record: Record | None = None
    written: list[str] = field(default_factory=list)
    #: Number of the baseline's observations that --amp-accept changed; None if it changed no file.
    accepted: int | None = None


@dataclass(frozen=True)
class RunContext:
    """Parts of a run that the checks of a test read."""

    options: AmpConfig
    baseline: Baseline | None
    targets: RequestedTargets

    @property
    def retains_values(self) -> bool:
        """True if the values of the run are written to a file: a record, or a report in JSON."""
        return self.options.record is not None or any(report.format == "json" for report in self.options.report)


class AmpSession:
    """All parts of a run. Only hooks and what judges the whole run see it; everything else receives single parts."""

    def __init__(self, config: pytest.Config, options: AmpConfig, device_types: tuple[str, ...] = ()) -> None:
        """Create the parts; ``device_types`` are the names that the hook pytest_amp_devices yields."""
        self.config = config
        self.options = options
        self.messages = Messages()
        self.targets = RequestedTargets(options, config, self.messages, device_types)
        self.selection = Selection()
        self.collected = Collected()
        self.isolation = Isolation()
        self.facts = Facts()
        self.ending = Ending()
        self.conclusion = Conclusion()
        #: pytest-xdist's nodes that sent their data at the end.
        self.finished_nodes: list[Any] = []

    @cached_property
    def tally(self) -> Tally:
        """Return the counts of reports, which the controller keeps under pytest-xdist."""
        from pytest_amp.run.tally import Tally

        return Tally()

    @cached_property
    def baseline(self) -> Baseline | None:
        """Return the record to compare with; it is read and checked before anything runs."""
        if self.options.baseline is None or not self.options.baseline.is_file():
            return None
        from pytest_amp.record import Baseline, RecordError, read_record

        try:
            record = read_record(self.options.baseline)
        except RecordError as error:
            option = self.options.where("amp_baseline")
            raise pytest.UsageError(f"{option}: {error}; expected a file that --amp-record wrote") from None
        # A ChainMap instead of a copy: devices and revisions are added once tests are collected.
        fixed: dict[str, Value] = {"seed": self.options.seed, "tolerance_scale": self.options.tolerance_scale}
        return Baseline(record, ChainMap(fixed, self.facts.provenance))

    @property
    def concerned(self) -> bool:
        """Return whether there is anything to judge or report: an amp test, a file, or a worker that ended badly."""
        files = self.options.record is not None or bool(self.options.report)
        failed = bool(self.messages.problems) or bool(self.finished_nodes and self.messages.usage_errors)
        return self.selection.active or files or failed

    def to_controller(self) -> str:
        """Return a worker's data that its controller lacks, as JSON."""
        data = {
            "usage_errors": self.messages.usage_errors,
            "problems": self.messages.problems,
            "selection": self.selection.to_json(),
            "provenance": self.facts.provenance,
            "speed_reason": self.targets.speed_reason,
        }
        return json.dumps(data)

    def from_worker(self, text: str) -> None:
        """Merge a worker's data."""
        data = json.loads(text)
        for message in data["usage_errors"]:
            self.messages.usage_error(message)
        self.messages.problem(*data["problems"])
        self.selection.merge(data["selection"])
        self.facts.provenance.update(data["provenance"])
        self.targets.speed_reason = data["speed_reason"] or self.targets.speed_reason


KEY = pytest.StashKey[AmpSession]()
