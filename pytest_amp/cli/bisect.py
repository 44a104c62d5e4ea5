"""Command ``pytest-amp bisect OLD NEW -k TEST``: the first torch release that changes a check's result."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TextIO

from pytest_amp.bisection import (
    Answer,
    Installer,
    Question,
    Standing,
    Trial,
    Trials,
    between,
    listed,
    search,
    wheels_in,
)
from pytest_amp.bisection.search import most_trials
from pytest_amp.bisection.trial import PACKAGE, forget
from pytest_amp.cli.common import (
    FOUND,
    NOTHING_FOUND,
    Commands,
    bar,
    chosen_verdicts,
    failing,
    is_a_wheel,
    write,
)
from pytest_amp.record import Verdict


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "bisect",
        help="the first torch release in which a check turned red",
        description="Runs the checks on OLD and NEW and on releases between them, each in an environment that is made "
        "for it and thrown away, and finds the first that differs from OLD: a check fails that did not, or observes "
        "something else. What was found is kept in a folder: called again, an interrupted search goes on. Ends with 1 "
        "where nothing differs.",
    )
    command.add_argument("old", help="a release, or the version of a wheel: 2.11.0")
    command.add_argument("new", help="a later one, which differs: 2.14.1")
    command.add_argument("tests", nargs="*", help="paths or ids for pytest (default: the suites)")
    command.add_argument("-k", dest="expression", metavar="TEST", help="pytest's -k: which checks")
    command.add_argument("--device", default="cpu", help="--amp-device (default: cpu; fake:cuda needs no hardware)")
    command.add_argument("--dtype", default="bf16", help="--amp-dtype (default: bf16)")
    command.add_argument("--pytest-args", default="", metavar="ARGS", help="more arguments for pytest, as one word")
    command.add_argument("--wheels", type=Path, metavar="FOLDER", help="search the wheels of torch in this folder")
    command.add_argument("--releases", metavar="LIST", help="search these releases only, a comma list")
    command.add_argument("--install-args", default="", metavar="ARGS", help="more arguments for each pip install")
    command.add_argument("--requires", default="", metavar="LIST", help="what the tests need besides, a comma list")
    command.add_argument("--installer", choices=("uv", "pip"), help="default: uv where there is one")
    default = failing(Verdict.NEW)
    command.add_argument("--fail-on", default=default, metavar="VERDICTS", help="what counts (default: %(default)s)")
    command.add_argument("--folder", type=Path, default=Path(".pytest-amp-bisect"), help="default: %(default)s")
    command.add_argument("--restart", action="store_true", help="forget what an earlier search has found")
    command.set_defaults(run=_bisect, parser=command)


def _bisect(options: argparse.Namespace) -> int:
    verdicts = tuple(verdict.value for verdict in chosen_verdicts(options))
    from pytest_amp.config import OPTIONS, Context

    try:
        # Only for the suites: a project's own tests may add devices of their own.
        for ini, text in () if options.tests else (("amp_device", options.device), ("amp_dtype", options.dtype)):
            next(option for option in OPTIONS if option.ini == ini).parse(text, Context())
        releases = between(options.old, options.new, _candidates(options))
        question = Question(releases[0], releases[-1], _arguments(options), verdicts)
        if options.restart:
            forget(options.folder)
        progress = Progress(most_trials(len(releases)), sys.stderr)
        trials = Trials(question, options.folder, _installer(options), progress.tell)
        _be_sure_of(trials, releases[0])
        answer = search(releases, lambda release: progress.done(trials(release)))
    except ValueError as error:
        options.parser.error(str(error))
    write(_answer_text(answer, releases[0]))
    return FOUND if answer.first is not None else NOTHING_FOUND


def _candidates(options: argparse.Namespace) -> list[str]:
    if options.releases:
        return [name.strip() for name in options.releases.split(",")]
    return wheels_in(options.wheels) if options.wheels is not None else listed()


def _installer(options: argparse.Namespace) -> Installer:
    more = tuple(name.strip() for name in options.requires.split(",") if name.strip())
    installer = Installer.found(wheels=options.wheels, arguments=tuple(shlex.split(options.install_args)), more=more)
    return (
        installer
        if options.installer is None
        else Installer(options.installer, installer.wheels, installer.arguments, more)
    )


def _arguments(options: argparse.Namespace) -> tuple[str, ...]:
    suites = ["--pyargs", "pytest_amp.suites"] if is_a_wheel() else [str(PACKAGE.parent / "suites")]
    chosen = ["-k", options.expression] if options.expression else []
    target = [f"--amp-device={options.device}", f"--amp-dtype={options.dtype}", "--amp-speed=off"]
    return (*(options.tests or suites), *chosen, *target, *shlex.split(options.pytest_args))


def _be_sure_of(trials: Trials, old: str) -> None:
    """Try the old release first, since all trials are compared with it. Raises ValueError if it cannot be tried."""
    trial = trials(old)
    if trial.outcome is Standing.BROKEN:
        raise ValueError(f"torch {old} could not be tried: {'; '.join(trial.facts)}")


def _answer_text(answer: Answer, old: str) -> str:
    if answer.first is None:
        return f"nothing differs between torch {old} and {answer.last_same}\n"
    lines = [f"torch {answer.first.release} is the first that differs from {old}; {answer.last_same} is the same"]
    lines += [f"  {fact}" for fact in answer.first.facts]
    lines += [f"not tried: {trial.release}: {'; '.join(trial.facts)}" for trial in answer.untried]
    return "\n".join([*lines, ""])


class Progress:
    """Progress bar with a line for each tried release; on a terminal it is one line, rewritten in place."""

    def __init__(self, most: int, stream: TextIO) -> None:
        """Start the bar; ``most`` is the maximum number of trials, including the old release."""
        self._most = most
        self._stream = stream
        self._tried: set[str] = set()
        self._started = time.monotonic()

    def tell(self, release: str, what: str) -> None:
        """Show that a step begins."""
        self._tried.add(release)
        done = max(len(self._tried) - 1, 0)
        start, end = ("\r\x1b[K", "") if self._stream.isatty() else ("", "\n")
        seconds = time.monotonic() - self._started
        line = f"{bar(done, self._most)} {done} of at most {self._most}, {seconds:.0f} s: torch {release}: {what}"
        self._stream.write(f"{start}{line}{end}")
        self._stream.flush()

    def done(self, trial: Trial) -> Trial:
        """Show that a release has been tried."""
        end = "\r\x1b[K" if self._stream.isatty() else ""
        self._stream.write(f"{end}torch {trial.release}: {trial.outcome.value}\n")
        self._stream.flush()
        return trial
