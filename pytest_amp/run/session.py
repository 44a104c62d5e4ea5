"""State of one run: options, requested devices, and all results, in one place."""

from __future__ import annotations

import json
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_amp.config import AmpConfig

if TYPE_CHECKING:
    from pytest_amp.account import Account
    from pytest_amp.record import Baseline, Observation, Record, Value
    from pytest_amp.report.progress import Progress
    from pytest_amp.run.resolution import Speed
    from pytest_amp.run.tally import Tally
    from pytest_amp.run.targets import Target


class AmpSession:
    """State of one run in this process. Everything is imported and probed only when it is needed."""

    def __init__(self, config: pytest.Config, options: AmpConfig, device_types: tuple[str, ...] = ()) -> None:
        """Store the ``options`` and the ``device_types`` that the hook pytest_amp_devices yields."""
        self.config = config
        self.device_types = device_types
        self.options = options
        #: Usage errors that are raised at the end of collection.
        self.usage_errors: list[str] = []
        #: Reasons for which the run fails even if every test passes.
        self.problems: list[str] = []
        #: Notes of the summary, which do not fail the run.
        self.notes: list[str] = []
        #: Signal that ended the run.
        self.ended_by: int | None = None
        #: Whether all tests have ended, so that only the verdict and the files remain.
        self.finishing = False
        #: Number of tests that this plugin deselected, by reason.
        self.deselected: Counter[str] = Counter()
        #: Number of tests by (target, family, test without parameters), selected or not.
        self.created: Counter[tuple[str, str, str]] = Counter()
        #: Number of tests selected to run, by (target, family).
        self.selected: Counter[tuple[str, str]] = Counter()
        #: Modules of families that were skipped during their import: family and reason by node id.
        self.skipped_modules: dict[str, tuple[str, str]] = {}
        #: Amp tests collected in this process, and items that were deselected.
        self.collected: list[pytest.Item] = []
        self.deselected_items: list[pytest.Item] = []
        #: Items that this plugin deselected itself, and the ids of the remaining amp tests.
        self.dropped: list[pytest.Item] = []
        self.selected_nodes: set[str] = set()
        #: Whether tests cannot run because a requested device is missing; no further tests are collected.
        self.refused = False
        #: Whether collection was completed in this process, and the status of the run once it was judged.
        self.collection_ended = False
        self.status: int | None = None
        #: Paths of families that an ini key keeps from being collected, with the problem in a line.
        self.left_out: dict[Path, str] = {}
        #: Whether a test that uses this plugin has been collected in this process.
        self.active = False
        self.provenance: dict[str, Value] = {}
        #: Whether the provenance was sent to the controller with a report.
        self.provenance_sent = False
        #: Provenance of the times with which pytest-benchmark compares this run's.
        self.earlier_times: list[dict[str, Any]] = []
        self.speed_reason: str | None = None
        #: Observations of the baseline whose tests no longer make them, and the record for the requested files.
        self.gone: list[Observation] = []
        self.record: Record | None = None
        self.written: list[str] = []
        #: Number of the baseline's observations that --amp-accept changed; None if it changed no file.
        self.accepted: int | None = None
        #: pytest-xdist's nodes that sent their data at the end.
        self.finished_nodes: list[Any] = []
        #: Failures that have not reached pytest yet, while tests run in this process.
        self.account: Account | None = None
        #: Device name -> the test after which it no longer answered, and its error.
        self.poisoned: dict[str, tuple[str, str]] = {}
        #: Faults of the machine by their sentence, and lost devices: the message, and the tests that met them.
        self.faults: dict[str, tuple[str, list[str]]] = {}
        self.lost: dict[str, tuple[str, list[str]]] = {}
        #: Workers that ended after their device was lost.
        self.left: set[str] = set()
        #: Whether this worker stays, although its device was lost: a new process could not use it, either.
        self.stays = False
        #: The fp32 and tf32 targets, by device key and precision.
        self.wide_targets: dict[tuple[str, str], Target] = {}

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """Return every device and precision of the run; empty after a usage error."""
        from pytest_amp.run.resolution import Unavailable, resolve_targets

        try:
            return resolve_targets(self.options, self.config)
        except Unavailable as error:
            self.usage_error(str(error))
            self.refused = True
            return ()

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
            speed = resolve_speed(self.options, self.config, self.targets)
        except Unavailable as error:
            self.usage_error(str(error))
            speed = Speed("off", str(error))
        self.speed_reason = f"{speed.mode}: {speed.reason}"
        return speed

    @cached_property
    def tally(self) -> Tally:
        """Return the counts, which the controller keeps under pytest-xdist."""
        from pytest_amp.run.tally import Tally

        return Tally()

    @cached_property
    def progress(self) -> Progress:
        """Return the reporter of progress, which the controller uses under pytest-xdist."""
        from pytest_amp.report.progress import Progress

        return Progress()

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
        return Baseline(record, ChainMap(fixed, self.provenance))

    def usage_error(self, message: str) -> None:
        """Note a usage error once; it is raised at the end of collection."""
        if message not in self.usage_errors:
            self.usage_errors.append(message)

    def problem(self, message: str) -> None:
        """Note once a reason for which the run fails, even if every test passes."""
        if message not in self.problems:
            self.problems.append(message)

    def add_notes(self, notes: object) -> None:
        """Add the notes of a test's report, without duplicates."""
        for note in notes if isinstance(notes, list) else ():
            if note not in self.notes:
                self.notes.append(note)

    def data_of(self, report: pytest.TestReport) -> Mapping[str, object] | None:
        """Return a report's data of an amp test; for pytest-xdist's report of a dead worker, the test's first data."""
        data: Mapping[str, object] | None = getattr(report, "amp", None)
        if data is None and report.when not in ("setup", "call", "teardown"):
            data = self.tally.begun.get(report.nodeid)
        return data

    def publish(self, observation: Observation) -> None:
        """Pass ``observation`` to the hook. If the hook raises, the run continues and fails at its end."""
        try:
            self.config.hook.pytest_amp_observation(observation=observation)
        except pytest.exit.Exception:
            raise
        except Exception as error:  # noqa: BLE001  # a project's own code may raise anything
            from pytest_amp.hookspecs import raised_in

            self.problem(raised_in("pytest_amp_observation", error))

    def to_controller(self) -> str:
        """Return a worker's data that its controller lacks, as JSON."""
        data = {
            "usage_errors": self.usage_errors,
            "problems": self.problems,
            "deselected": dict(self.deselected),
            "created": [[*test, count] for test, count in self.created.items()],
            "selected": [[*place, count] for place, count in self.selected.items()],
            "skipped_modules": self.skipped_modules,
            "active": self.active,
            "provenance": self.provenance,
            "speed_reason": self.speed_reason,
        }
        return json.dumps(data)

    def from_worker(self, text: str) -> None:
        """Merge a worker's data. Every worker collects all tests, so counts of collection are equal."""
        data = json.loads(text)
        for message in data["usage_errors"]:
            self.usage_error(message)
        self.problems += [problem for problem in data["problems"] if problem not in self.problems]
        self.deselected |= Counter(data["deselected"])
        self.created |= Counter({(target, family, test): count for target, family, test, count in data["created"]})
        self.selected |= Counter({(target, family): count for target, family, count in data["selected"]})
        self.skipped_modules |= {name: (family, reason) for name, (family, reason) in data["skipped_modules"].items()}
        self.active = self.active or data["active"]
        self.provenance.update(data["provenance"])
        self.speed_reason = data["speed_reason"] or self.speed_reason

    @property
    def concerned(self) -> bool:
        """Return whether there is anything to judge or report: an amp test, a file, or a worker that ended badly."""
        files = self.options.record is not None or bool(self.options.report)
        return self.active or files or bool(self.problems) or bool(self.finished_nodes and self.usage_errors)

    def observed(self) -> Iterable[Observation]:
        """Return every observation; workers have none."""
        return (observation for _, observation in self.tally.observations.values())


KEY = pytest.StashKey[AmpSession]()
