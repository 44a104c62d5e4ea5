"""State of one run: options, requested devices, and all results, in one place."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_amp.config import AmpConfig

if TYPE_CHECKING:
    from pytest_amp.account import Account
    from pytest_amp.record import Observation, Record, Value, Verdict
    from pytest_amp.report.progress import Progress
    from pytest_amp.run.resolution import Speed
    from pytest_amp.run.tally import Tally
    from pytest_amp.run.targets import Target


class AmpSession:
    """State of one run in this process. Everything is imported and probed only when it is needed."""

    def __init__(self, config: pytest.Config, asked: AmpConfig, device_types: tuple[str, ...] = ()) -> None:
        """Keep the options ``asked`` and the ``device_types`` that the hook pytest_amp_devices yields."""
        self.config = config
        self.device_types = device_types
        self.asked = asked
        #: Problems that end the run as a usage error, found while collecting.
        self.usage_errors: list[str] = []
        #: Reasons for which the run is red although every test may be green.
        self.problems: list[str] = []
        #: Notes of the summary, which make no run red.
        self.notes: list[str] = []
        #: Signal that ended the run.
        self.ended_by: int | None = None
        #: Whether all tests have ended, so that only judging and writing remain.
        self.finishing = False
        #: Number of tests that this plugin deselected, by reason.
        self.deselected: Counter[str] = Counter()
        #: Number of tests by (target, family, test without parameters), selected or not.
        self.made: Counter[tuple[str, str, str]] = Counter()
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
        #: Whether tests collected from here on cannot run: a requested device is missing.
        self.refused = False
        #: Whether collection was completed in this process, and the status of the run once it was judged.
        self.collection_ended = False
        self.status: int | None = None
        #: Paths of families that an ini key keeps from being collected, with the problem in a line.
        self.left_out: dict[Path, str] = {}
        #: Whether a test that uses this plugin has been collected in this process.
        self.active = False
        self.provenance: dict[str, Value] = {}
        #: Whether a report has carried the provenance to the process that counts.
        self.told = False
        #: Provenance of the times with which pytest-benchmark compares this run's.
        self.earlier_times: list[dict[str, Any]] = []
        self.speed_reason: str | None = None
        self.gone: list[Observation] = []
        self.written: list[str] = []
        #: Number of the baseline's observations that --amp-accept changed; None if it changed no file.
        self.accepted: int | None = None
        self._unfair: dict[str, str | None] = {}
        #: pytest-xdist's nodes that ended normally, by their own account.
        self.finished_nodes: list[Any] = []
        #: Account of unreceived failures, while tests run in this process.
        self.account: Account | None = None
        #: Device name -> the test after which it no longer answered, and its error.
        self.poisoned: dict[str, tuple[str, str]] = {}
        #: The fp32 and tf32 targets, by device key and precision.
        self.wide_targets: dict[tuple[str, str], Target] = {}

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """Return every device and precision of the run; empty after a usage error."""
        from pytest_amp.run.resolution import Unavailable, resolve_targets

        try:
            return resolve_targets(self.asked, self.config)
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
            return f"torch cannot be imported ({reason}); valid: pip install torch; `pytest-amp doctor` says more"
        return None

    @cached_property
    def speed(self) -> Speed:
        """Return whether speed is timed in this process, with the reason."""
        from pytest_amp.run.resolution import Speed, Unavailable, resolve_speed

        try:
            speed = resolve_speed(self.asked, self.config, self.targets)
        except Unavailable as error:
            self.usage_error(str(error))
            speed = Speed("off", str(error))
        self.speed_reason = f"{speed.mode}: {speed.reason}"
        return speed

    @cached_property
    def tally(self) -> Tally:
        """Return the counts, in the process that prints."""
        from pytest_amp.run.tally import Tally

        return Tally()

    @cached_property
    def progress(self) -> Progress:
        """Return the reporter of progress, in the process that prints."""
        from pytest_amp.report.progress import Progress

        return Progress()

    @cached_property
    def baseline(self) -> Record | None:
        """Return the record to compare with; it is read and checked before anything runs."""
        if self.asked.baseline is None or not self.asked.baseline.is_file():
            return None
        from pytest_amp.record import RecordError, read_record

        try:
            return read_record(self.asked.baseline)
        except RecordError as error:
            where = self.asked.where("amp_baseline")
            raise pytest.UsageError(f"{where}: {error}; valid: a file that --amp-record wrote") from None

    @cached_property
    def _known(self) -> dict[str, Observation]:
        return {} if self.baseline is None else self.baseline.by_key()

    def before(self, key: str) -> Observation | None:
        """Return the baseline's observation with ``key``."""
        return self._known.get(key)

    def unfair(self, device: str) -> str | None:
        """Return why errors on the device with this key cannot be compared with the baseline's; None if they can."""
        from pytest_amp.record import unfair

        assert self.baseline is not None
        if device not in self._unfair:  # requested for each observation, and equal for all
            asked: dict[str, Value] = {"seed": self.asked.seed, "tolerance_scale": self.asked.tolerance_scale}
            now = {**self.provenance, **asked}
            self._unfair[device] = unfair(self.baseline.provenance, now, device)
        return self._unfair[device]

    @cached_property
    def revised(self) -> dict[str, tuple[str, str]]:
        """Return the families with another test revision than in the baseline, with both revisions."""
        from pytest_amp.record import revisions

        return {} if self.baseline is None else revisions(self.baseline.provenance, self.provenance)

    def differences(self) -> dict[Verdict, list[Observation]]:
        """Return the observations that differ from the baseline, by verdict."""
        from pytest_amp.record import ORDER, Verdict

        observed = list(self.observed())
        groups = {verdict: [each for each in observed if each.verdict is verdict] for verdict in ORDER}
        return {verdict: self.gone if verdict is Verdict.GONE else group for verdict, group in groups.items()}

    def usage_error(self, message: str) -> None:
        """Note a usage error once; it is raised at the end of collection."""
        if message not in self.usage_errors:
            self.usage_errors.append(message)

    def problem(self, message: str) -> None:
        """Note once why the run is red, regardless of its tests."""
        if message not in self.problems:
            self.problems.append(message)

    def take_notes(self, notes: object) -> None:
        """Keep the notes of a test's report, without duplicates."""
        for note in notes if isinstance(notes, list) else ():
            if note not in self.notes:
                self.notes.append(note)

    def seen_in(self, report: pytest.TestReport) -> Mapping[str, object] | None:
        """Return a report's data of an amp test; for pytest-xdist's report of a dead worker, the test's first data."""
        data: Mapping[str, object] | None = getattr(report, "amp", None)
        if data is None and report.when not in ("setup", "call", "teardown"):
            data = self.tally.begun.get(report.nodeid)
        return data

    def tell(self, observation: Observation) -> None:
        """Pass ``observation`` to the hook; if that raises, the run continues and is red at its end."""
        try:
            self.config.hook.pytest_amp_observation(observation=observation)
        except pytest.exit.Exception:
            raise
        except Exception as error:  # noqa: BLE001  # a project's own code may raise anything
            from pytest_amp.hookspecs import raised_in

            self.problem(raised_in("pytest_amp_observation", error))

    def note_provenance(self) -> None:
        """Note the facts that values of this process may depend on: the build of torch and the devices."""
        import torch

        from pytest_amp.devices import DeviceKind, find_device

        self.provenance["torch"] = str(torch.__version__)
        self.provenance["torch_git"] = str(torch.version.git_version)
        self.provenance["torch_build"] = {
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "debug": bool(torch.version.debug),
            "compiler": _compiler(torch.__config__.show()),
        }
        self.provenance["devices"] = {
            target.device.key: dict(target.device.provenance()) for target in self.targets if target.missing is None
        }
        # A GPU's steps wait for its host, whichever devices were selected.
        self.provenance["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
        if any(target.device.kind is DeviceKind.FAKE for target in self.targets):
            # Facts that a fake device cannot provide come from CPU kernels.
            self.provenance["host"] = dict(find_device("cpu").provenance())

    def note_families(self, folders: Mapping[str, Path]) -> None:
        """Note the revision of each family, by name, from the folder of its package."""
        from pytest_amp.run.revision import revision_of

        if folders:
            self.provenance["revisions"] = {name: revision_of(folder) for name, folder in sorted(folders.items())}

    @staticmethod
    def torch_version() -> str:
        """Return ``torch 2.13.0+cpu``, for messages; imports torch."""
        import torch

        return f"torch {torch.__version__}"

    def to_controller(self) -> str:
        """Return a worker's data that its controller lacks, as JSON."""
        data = {
            "usage_errors": self.usage_errors,
            "problems": self.problems,
            "deselected": dict(self.deselected),
            "made": [[*test, count] for test, count in self.made.items()],
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
        self.made |= Counter({(target, family, test): count for target, family, test, count in data["made"]})
        self.selected |= Counter({(target, family): count for target, family, count in data["selected"]})
        self.skipped_modules |= {name: (family, why) for name, (family, why) in data["skipped_modules"].items()}
        self.active = self.active or data["active"]
        self.provenance.update(data["provenance"])
        self.speed_reason = data["speed_reason"] or self.speed_reason

    @property
    def concerned(self) -> bool:
        """Return whether there is anything to judge or report: an amp test, a file, or a worker that ended badly."""
        files = self.asked.record is not None or bool(self.asked.report)
        return self.active or files or bool(self.problems) or bool(self.finished_nodes and self.usage_errors)

    def observed(self) -> Iterable[Observation]:
        """Return every observation, in the process that prints."""
        return (observation for _, observation in self.tally.observations.values())


def _compiler(shown: str) -> str | None:
    """Return the compiler named by ``torch.__config__.show()``, such as ``GCC 13.3``."""
    found = re.search(r"^\s*- ((?:GCC|clang|MSVC|Apple)\b.*)$", shown, re.MULTILINE | re.IGNORECASE)
    return found[1].strip() if found else None


KEY = pytest.StashKey[AmpSession]()
