"""Trial of one release: create an environment, run the tests in it, and compare their observations with the oldest's.

All results are kept in a folder, so that an interrupted search continues from there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest_amp
from pytest_amp.bisection.environment import Installer, InstallFailed
from pytest_amp.bisection.search import Standing, Trial
from pytest_amp.record import Record, RecordError, Verdict, difference, read_record
from pytest_amp.text.amounts import counted

#: Exit statuses of pytest after which the record is complete: all passed, some failed, nothing was selected.
ANSWERED = (0, 1, 5)
PACKAGE = Path(pytest_amp.__file__).parent
#: Maximum number of facts that are shown of a release.
MOST = 12


@dataclass(frozen=True)
class Question:
    """Question of a search: the arguments of pytest, and which verdicts count as a difference."""

    old: str
    new: str
    arguments: tuple[str, ...]
    verdicts: tuple[str, ...]


class Trials:
    """Trials of one question, kept in ``folder``. Raises ValueError if the folder belongs to a different question."""

    def __init__(
        self, question: Question, folder: Path, installer: Installer, tell: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        """Open the folder; ``tell(release, what)`` is called as each step begins."""
        self.question = question
        self.folder = folder
        self._installer = installer
        self._tell = tell
        folder.mkdir(parents=True, exist_ok=True)
        question_file = folder / "question.json"
        text = json.dumps(asdict(question), indent=1)
        if question_file.exists() and json.loads(question_file.read_text(encoding="utf-8")) != json.loads(text):
            raise ValueError(f"{folder} is of another question; expected --restart, or another --folder")
        question_file.write_text(text, encoding="utf-8")

    def __call__(self, release: str) -> Trial:
        """Try ``release``, or read the result of an earlier trial."""
        known = self.folder / release / "trial.json"
        if not known.exists():
            _write(known, self._attempt(release))
        return _read(known)

    def _attempt(self, release: str) -> Trial:
        try:
            record = self._record(release)
        except (InstallFailed, RecordError) as error:
            return Trial(release, Standing.BROKEN, (str(error),))
        if release == self.question.old:
            return Trial(release, Standing.SAME, (counted(len(record.observations), "fact"),))
        old = self._old()
        facts = _differences(old, record, self.question.verdicts)
        shown = facts[:MOST] + ([f"and {len(facts) - MOST} more"] if len(facts) > MOST else [])
        return Trial(release, Standing.DIFFERENT if facts else Standing.SAME, tuple(shown))

    def _old(self) -> Record:
        """Return the record of the oldest release, the reference of all trials. Raises InstallFailed, RecordError."""
        return self._record(self.question.old)

    def _record(self, release: str) -> Record:
        """Return the record of the tests on ``release``; they run once, and later questions reuse the record."""
        place = self.folder / release
        record, log = place / "record.json", place / "log"
        if not record.exists():
            place.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place) as name:
                environment = Path(name)
                self._tell(release, "installing")
                python = self._installer.make(release, environment / "venv", log)
                self._tell(release, "checking")
                record_file = environment / "record.json"
                status = _run(python, self.question.arguments, record_file, environment, log)
                if status not in ANSWERED or not record_file.exists():
                    raise InstallFailed(f"pytest ended with {status}: {_last_line(log)}")
                record_file.replace(record)
        return read_record(record)


def _run(python: str, arguments: Sequence[str], record: Path, scratch: Path, log: Path) -> int:
    """Run pytest with this plugin, without the remaining environment of this process."""
    path = scratch / "path"
    path.mkdir()
    (path / PACKAGE.name).symlink_to(PACKAGE)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHON", "VIRTUAL_ENV"))
    }
    # Load this plugin by its module, not by an entry point that the environment may have as well.
    plugins = [word for name in ("no:amp", "pytest_amp.plugin", "no:cacheprovider") for word in ("-p", name)]
    command = [python, "-m", "pytest", *plugins, "-q", "-rfE"]
    with log.open("a", encoding="utf-8") as output:
        done = subprocess.run(  # noqa: S603
            [*command, f"--amp-record={record}", *arguments],
            env={**environment, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode


def _last_line(log: Path) -> str:
    return (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing was printed"])[-1]


def _differences(old: Record, new: Record, verdicts: Sequence[str]) -> list[str]:
    """Return the differences, a line each. A fact of a test that the old release did not have is new, too."""
    compared = difference(old, new)
    chosen = [Verdict(name) for name in verdicts]
    lines = [
        f"{observation.verdict.value}: {observation.key}: {observation.baseline} -> {observation.value}"
        for verdict in chosen
        for observation in compared.of(verdict)
        if verdict is not Verdict.NEW
    ]
    if Verdict.NEW in chosen:
        known = old.by_key()
        lines += [f"new: {key}: {observation.value}" for key, observation in new.by_key().items() if key not in known]
    return lines


def _write(path: Path, trial: Trial) -> None:
    """Write a trial atomically, so that an interrupted search leaves no partial file."""
    path.parent.mkdir(exist_ok=True)
    waiting = path.with_suffix(".part")
    waiting.write_text(json.dumps({**asdict(trial), "outcome": trial.outcome.value}, indent=1), encoding="utf-8")
    waiting.replace(path)


def _read(path: Path) -> Trial:
    data = json.loads(path.read_text(encoding="utf-8"))
    return Trial(data["release"], Standing(data["outcome"]), tuple(data["facts"]))


def forget(folder: Path) -> None:
    """Remove the results of an earlier search. Raises ValueError for a folder that no search has written."""
    if folder.exists() and not (folder / "question.json").is_file():
        raise ValueError(f"{folder} is not a folder of an earlier search, and is left alone")
    shutil.rmtree(folder, ignore_errors=True)
