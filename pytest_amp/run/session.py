"""State of one test run in this process, split into parts: a function receives only the parts that it needs.

torch is imported, and devices are probed, on first use.
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
    """Messages about the run as a whole, without duplicates."""

    #: Usage errors, which are raised together at the end of collection.
    usage_errors: list[str] = field(default_factory=list)
    #: Reasons why the run fails even if every test passes.
    problems: list[str] = field(default_factory=list)
    #: Lines of the terminal summary, which do not fail the run.
    notes: list[str] = field(default_factory=list)

    def usage_error(self, message: str) -> None:
        """Add a usage error, unless it is already listed."""
        if message not in self.usage_errors:
            self.usage_errors.append(message)

    def problem(self, *messages: str) -> None:
        """Add reasons why the run fails, without duplicates."""
        self.problems += [message for message in dict.fromkeys(messages) if message not in self.problems]

    def note(self, *messages: str) -> None:
        """Add lines of the terminal summary, without duplicates."""
        self.notes += [message for message in dict.fromkeys(messages) if message not in self.notes]


class RequestedTargets:
    """Requested devices and precisions, and the mode of speed checks, all resolved on first use."""

    def __init__(
        self, options: AmpConfig, config: pytest.Config, messages: Messages, device_types: tuple[str, ...] = ()
    ) -> None:
        """Store the options; ``device_types`` are the names of the types that the hook pytest_amp_devices adds."""
        self._options, self._config, self._messages = options, config, messages
        self.device_types = device_types
        #: True if no test can run, because torch or a requested device is missing; the remaining collection is skipped.
        self.refused = False
        #: Mode of speed checks and its reason as a text, None until resolved; a controller receives it from a worker.
        self.speed_reason: str | None = None
        self._wide: dict[tuple[str, str], Target] = {}

    def refuse(self, message: str) -> None:
        """Add a usage error for which no test can run, and skip the remaining collection."""
        self._messages.usage_error(message)
        self.refused = True

    @cached_property
    def low(self) -> tuple[Target, ...]:
        """Return a target for each requested device and low precision; empty after a usage error."""
        from pytest_amp.run.resolution import Unavailable, resolve_targets

        try:
            return resolve_targets(self._options, self._config)
        except Unavailable as error:
            self.refuse(str(error))
            return ()

    def wide(self, target: Target, precision: Precision) -> Target:
        """Return the fp32 or tf32 target of a device, cached: pytest shares fixtures between identical parameters."""
        from pytest_amp.run.targets import Target

        key = (target.device.key, precision.name)
        return self._wide.setdefault(key, Target(target.device, precision, target.missing, self._config))

    @cached_property
    def torch_problem(self) -> str | None:
        """Return a message of one line if torch cannot be imported, else None."""
        try:
            import torch  # noqa: F401  # tests the import
        except Exception as error:  # noqa: BLE001  # a missing library raises OSError, a partial installation anything
            from pytest_amp.text.quoted import quoted_with_type

            reason = quoted_with_type(error)
            return f"torch cannot be imported ({reason}): pip install torch; `pytest-amp doctor` says more"
        return None

    @cached_property
    def speed(self) -> Speed:
        """Return the mode of speed checks in this process, with its reason."""
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
    #: Number of tests by (target, family, test without parameters), including deselected ones.
    created: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    #: Number of tests selected to run, by (target, family).
    selected: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Modules and packages that skipped themselves at import: node id -> (family, reason).
    skipped_modules: dict[str, tuple[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the counts as JSON values."""
        return {
            "active": self.active,
            "deselected": dict(self.deselected),
            "created": [[*test, count] for test, count in self.created.items()],
            "selected": [[*group, count] for group, count in self.selected.items()],
            "skipped_modules": self.skipped_modules,
        }

    def merge(self, data: dict[str, Any]) -> None:
        """Merge the counts of a worker: their maximum, not their sum, because every worker collects all tests."""
        self.active = self.active or data["active"]
        self.deselected |= Counter(data["deselected"])
        self.created |= Counter({(target, family, test): count for target, family, test, count in data["created"]})
        self.selected |= Counter({(target, family): count for target, family, count in data["selected"]})
        self.skipped_modules |= {name: (family, reason) for name, (family, reason) in data["skipped_modules"].items()}


@dataclass
class Collected:
    """Test items of this process, from their collection to the first test."""

    #: Amp tests that were collected.
    items: list[pytest.Item] = field(default_factory=list)
    #: Items that pytest or any plugin deselected.
    deselected: list[pytest.Item] = field(default_factory=list)
    #: Items that this plugin deselected.
    dropped: list[pytest.Item] = field(default_factory=list)
    #: Node ids of the amp tests that remain selected.
    selected: set[str] = field(default_factory=set)
    #: Folders and files of a family that pytest did not collect: path -> message of one line.
    left_out: dict[Path, str] = field(default_factory=dict)
    #: True once collection has completed.
    ended: bool = False


@dataclass
class Isolation:
    """Effects of one test on later tests and on the run: unreported failures, machine faults, and lost devices."""

    #: Account of failures that were raised and not yet reported; None unless this process is running tests.
    account: Account | None = None
    #: Devices that this process can no longer use: name -> (node id of the last test, error).
    poisoned: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Machine faults, such as a full GPU: description -> (message, node ids of the affected tests).
    faults: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    #: Lost devices: name -> (message, node ids of the tests after which the loss was detected).
    lost: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    #: Ids of workers that exited because their device was lost; their exit is no further problem.
    left: set[str] = field(default_factory=set)
    #: True if this worker continues although its device was lost: a new process could not use the device, either.
    stays: bool = False


@dataclass
class Facts:
    """Provenance of the run: the versions, devices and settings that its observations depend on."""

    provenance: dict[str, Value] = field(default_factory=dict)
    #: True once a test report of this process carries the provenance.
    sent: bool = False
    #: Provenance of earlier pytest-benchmark runs with which this run is compared.
    earlier_times: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Ending:
    """State of the shutdown: the signal that ended the run, and whether the tests have ended."""

    #: Number of the signal that ended the run, if any.
    signal: int | None = None
    #: True once all tests have ended: only the verdict and the files remain to be produced.
    finishing: bool = False


@dataclass
class Conclusion:
    """Verdict on the run, and the files that were written."""

    #: Exit status; None until the run is judged.
    status: int | None = None
    #: Observations of the baseline whose tests passed without making them again.
    gone: list[Observation] = field(default_factory=list)
    #: Record of this run, from which the requested files are written.
    record: Record | None = None
    #: Paths of the written files.
    written: list[str] = field(default_factory=list)
    #: Number of observations that --amp-accept changed in the baseline; None if it did not write one.
    accepted: int | None = None


@dataclass(frozen=True)
class RunContext:
    """Parts of a run that the checks inside a test read."""

    options: AmpConfig
    baseline: Baseline | None
    targets: RequestedTargets

    @property
    def retains_values(self) -> bool:
        """True if the observations are written to a file: a record, or a report in JSON."""
        return self.options.record is not None or any(report.format == "json" for report in self.options.report)


class AmpSession:
    """All parts of a run. Only hooks and the verdict on the run use it; other functions receive single parts."""

    def __init__(self, config: pytest.Config, options: AmpConfig, device_types: tuple[str, ...] = ()) -> None:
        """Create the parts; ``device_types`` are the names of the types that the hook pytest_amp_devices adds."""
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
        #: Worker nodes of pytest-xdist that sent their data at the end of their session.
        self.finished_nodes: list[Any] = []

    @cached_property
    def tally(self) -> Tally:
        """Return the counts of test reports; with pytest-xdist only the controller fills them."""
        from pytest_amp.run.tally import Tally

        return Tally()

    @cached_property
    def baseline(self) -> Baseline | None:
        """Return the baseline, if any; it is read before any test runs. Raises UsageError if it is not a record."""
        if self.options.baseline is None or not self.options.baseline.is_file():
            return None
        from pytest_amp.record import Baseline, RecordError, read_record

        try:
            record = read_record(self.options.baseline)
        except RecordError as error:
            option = self.options.where("amp_baseline")
            raise pytest.UsageError(f"{option}: {error}; expected a file that --amp-record wrote") from None
        # A ChainMap, not a copy: devices and revisions are added to the provenance later, when tests are collected.
        settings: dict[str, Value] = {"seed": self.options.seed, "tolerance_scale": self.options.tolerance_scale}
        return Baseline(record, ChainMap(settings, self.facts.provenance))

    @property
    def concerned(self) -> bool:
        """Return whether there is anything to report: an amp test, a requested file, a problem, or a worker's error."""
        writes_files = self.options.record is not None or bool(self.options.report)
        has_errors = bool(self.messages.problems) or bool(self.finished_nodes and self.messages.usage_errors)
        return self.selection.active or writes_files or has_errors

    def to_controller(self) -> str:
        """Return the state of this worker that its controller merges, as JSON."""
        data = {
            "usage_errors": self.messages.usage_errors,
            "problems": self.messages.problems,
            "selection": self.selection.to_json(),
            "provenance": self.facts.provenance,
            "speed_reason": self.targets.speed_reason,
        }
        return json.dumps(data)

    def from_worker(self, text: str) -> None:
        """Merge the JSON that ``to_controller`` returned in a worker."""
        data = json.loads(text)
        for message in data["usage_errors"]:
            self.messages.usage_error(message)
        self.messages.problem(*data["problems"])
        self.selection.merge(data["selection"])
        self.facts.provenance.update(data["provenance"])
        self.targets.speed_reason = data["speed_reason"] or self.targets.speed_reason


KEY = pytest.StashKey[AmpSession]()
