"""Command ``pytest-amp calibrate``: the floors of a card, measured in several fresh processes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_amp.cli.common import Commands, is_a_wheel, whole, write
from pytest_amp.record import RecordError, alone, content
from pytest_amp.text.amounts import counted

if TYPE_CHECKING:
    from pytest_amp.floors import Row
    from pytest_amp.speed.calibration import Session

#: Exit statuses: the file was written, or not.
WRITTEN, NOT_WRITTEN = 0, 1
LEAST_SESSIONS = 3
#: Largest error of a floor by rounding to four digits.
ROUNDED = 1e-4


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "calibrate",
        help="measure the speed of this machine's card in fresh processes, and write its floors",
        description="Runs the tests of speed in several fresh processes, one after the other, and writes a floor for "
        "each piece of work: of the median over the processes 0.95 in device time and 0.80 in step time, and no more "
        "than the card's peak rates allow. The file is replaced as a whole or not at all; other cards' floors stay. A "
        "floor that would fall needs --reason, which is kept in the file. Ends with 1 where nothing was written.",
    )
    command.add_argument("tests", nargs="*", help="paths or ids for pytest (default: the suite speed)")
    command.add_argument(
        "--from",
        dest="from_",
        metavar="FILE",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        help="measure nothing: take these files, 3 or more, which --benchmark-json wrote in runs of their own, or "
        "--amp-record under --amp-speed=gate; or files of floors, which owners of other cards wrote: they are merged",
    )
    command.add_argument("--sessions", type=whole, default=5, help="how many processes, 3 or more (default: 5)")
    command.add_argument("--device", default="cuda", help="default: cuda")
    command.add_argument("--dtype", default="auto", help="comma list (default: what the device computes)")
    command.add_argument(
        "--to",
        type=Path,
        help="the file (default: the one that comes with this package, in a checkout of it; an installed one is the "
        "next upgrade's)",
    )
    command.add_argument("--reason", help="why floors fall, where they do")
    command.set_defaults(run=_calibrate, parser=command)


def _calibrate(options: argparse.Namespace) -> int:
    from pytest_amp import floors
    from pytest_amp.speed import calibration

    if options.sessions < LEAST_SESSIONS:
        options.parser.error(f"argument --sessions: {options.sessions}; expected {LEAST_SESSIONS} or more")
    if options.to is None and is_a_wheel():
        options.parser.error(
            "argument --to: nothing; expected a file of yours, for pytest --amp-floors=FILE: the package's own one "
            "goes with its next upgrade"
        )
    if options.device == "cpu" and not options.from_:
        write("a CPU has no floors: the following times are compared with nothing\n")
    path = options.to or Path(floors.__file__).with_name("floors.json")
    sessions: list[Session] = []
    try:
        _there(path)  # refuse an invalid file of floors before anything is measured
        offered = _offered(options.from_)
        if offered:
            with alone(path):
                floors.write(path, floors.merged(_there(path), offered, options.reason))
            write(calibration.as_text(offered))
            write(f"{counted(len(offered), 'floor')} merged into {path}\n")
            return WRITTEN
        runs = [_from(file) for file in options.from_] or [partial(_session, options)] * options.sessions
        for number, run in enumerate(runs, start=1):
            sessions.append(run())
            count, doubtful = len(sessions[-1].ratios), len(sessions[-1].doubted)
            write(f"process {number} of {len(runs)}: {count} measured, {doubtful} in doubt\n")
        new, left_out = calibration.rows(sessions, least=LEAST_SESSIONS)
        for line in left_out:
            write(f"left out: {line}\n")
        if not new:
            write("nothing was measured often enough; no file was written\n")
            return NOT_WRITTEN
        with alone(path):
            floors.write(path, floors.merged(_there(path), new, options.reason))
    except (floors.FloorsError, calibration.CalibrationError, RecordError) as error:
        sys.stderr.write(f"pytest-amp: {error}\n")
        return NOT_WRITTEN
    write(calibration.as_text(new))
    write(f"{counted(len(new), 'floor')} written to {path}\n")
    if options.to is not None:
        cards = ", ".join(dict.fromkeys(row.gpu for row in new))
        write(
            f"pytest --amp-floors={path} uses them. To share them with every owner of {cards}, attach the file to an "
            "issue or a pull request of pytest-amp, where `pytest-amp calibrate --from FILE` merges it\n"
        )
    return WRITTEN


def _there(path: Path) -> tuple[Row, ...]:
    """Return the floors of the file. Raises FloorsError, also if its folder does not exist."""
    from pytest_amp import floors

    if not path.parent.is_dir():
        raise floors.FloorsError(f"{path}: its folder is not there")
    return floors.read(path) if path.exists() else ()


def _offered(files: list[Path]) -> list[Row]:
    """Return the rows of files of floors; empty if none is one. Raises FloorsError for a mixture, or a bad row."""
    from pytest_amp import floors

    texts = {file: _text(file) for file in files}
    of_floors = [file for file, text in texts.items() if '"floors"' in text[:200]]
    if not of_floors:
        return []
    if len(of_floors) < len(texts):
        other = next(file for file in texts if file not in of_floors)
        raise floors.FloorsError(f"{other}: no file of floors, unlike {of_floors[0]}; expected files of one kind")
    rows = [row for file, text in texts.items() for row in floors.loads(text, str(file))]
    for row in rows:
        if row.sessions < LEAST_SESSIONS or row.floor > floors.SHARES[row.kind] * row.median + ROUNDED:
            raise floors.FloorsError(
                f"{' '.join(row.key)}: a floor of {row.floor}, a median of {row.median}, {row.sessions} processes; "
                f"expected {LEAST_SESSIONS} processes or more, and at most {floors.SHARES[row.kind]:g} of the median"
            )
    return rows


def _text(file: Path) -> str:
    """Return the text of a file. Raises CalibrationError."""
    from pytest_amp.speed import calibration

    try:
        return content(file)
    except RecordError as error:
        raise calibration.CalibrationError(str(error)) from None


def _from(file: Path) -> Callable[[], Session]:
    """Return a function that reads an earlier run's measurements. Raises CalibrationError."""
    from pytest_amp.speed import calibration

    def read() -> Session:
        return calibration.session_of(_text(file))

    return read


def _session(options: argparse.Namespace) -> Session:
    """Run pytest in a fresh process and return its measurements. Raises CalibrationError."""
    from pytest_amp.speed import calibration

    loaded = any(entry.name == "amp" for entry in metadata.entry_points(group="pytest11"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *(() if loaded else ("-p", "pytest_amp.plugin")),
            *(f"--amp-device={options.device}", f"--amp-dtype={options.dtype}", "--amp-speed=report"),
            f"--benchmark-json={file}",
            *(options.tests or _suite()),
        ]
        # A process of its own, even if this one is a pytest-xdist worker.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
        done = subprocess.run(  # noqa: S603  # runs pytest
            command, capture_output=True, text=True, check=False, env=environment
        )
        if not file.exists() or not file.stat().st_size:
            lines = (done.stdout + done.stderr).strip().splitlines()
            last = [line for line in lines if line.startswith("ERROR:")] or lines[-3:]
            raise calibration.CalibrationError(f"pytest ended with {done.returncode} and no times: {' / '.join(last)}")
        return calibration.session_of(file.read_text(encoding="utf-8"))


def _suite() -> tuple[str, ...]:
    """Return the arguments for the suite, installed or in the source tree."""
    if is_a_wheel():
        return "--pyargs", "pytest_amp.suites.speed"
    return (str(Path(__file__).parents[2] / "suites" / "speed"),)
