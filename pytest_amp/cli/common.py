"""What the commands share: exit statuses, options, reading a record, writing."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_amp.precision import DECIMAL
from pytest_amp.quoted import printable
from pytest_amp.record import FAILING, ORDER, Gap, Record, RecordError, Verdict, read_record

#: What ``add_subparsers`` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

#: Exit statuses, as grep and diff have them; argparse ends with 2 for a wrong command line, and so does a bad file.
FOUND, NOTHING_FOUND = 0, 1
SAME, DIFFERENT = 0, 1
#: The same for what could not be written; and what a shell says of a process whose reader has gone.
NOT_WRITTEN, UNREAD = 2, 128 + 13
#: Signs of a bar that says how far a command is.
BAR = 24


def failing(*also: Verdict) -> str:
    """The default of --fail-on: what fails a comparison, and ``also``, worst first."""
    return ",".join(verdict.value for verdict in ORDER if verdict in FAILING or verdict in also)


def chosen_verdicts(options: argparse.Namespace) -> tuple[Verdict, ...]:
    """What --fail-on names; a word that is no verdict ends the command with 2 and one line."""
    return tuple(Verdict(name) for name in _words(options, [verdict.value for verdict in ORDER]))


def chosen_failures(options: argparse.Namespace) -> tuple[frozenset[Verdict], frozenset[Gap]]:
    """The verdicts and gaps that fail a comparison, as --fail-on has them.

    ``none`` stands for no verdict and no gap. Verdicts that are named replace the default ones. Every gap fails unless
    it is excepted: ``-not_run``. A verdict that is excepted is taken from the default ones.
    """
    if options.fail_on == "none":
        return frozenset(), frozenset()
    verdicts, gaps = ([each.value for each in group] for group in (ORDER, Gap))
    names = _words(options, [*verdicts, *(f"-{name}" for name in (*gaps, *verdicts))], " or none")
    excepted = {name.removeprefix("-") for name in names if name.startswith("-")}
    named = {Verdict(name) for name in names if not name.startswith("-")} or FAILING
    return (
        frozenset(verdict for verdict in named if verdict.value not in excepted),
        frozenset(gap for gap in Gap if gap.value not in excepted),
    )


def _words(options: argparse.Namespace, expected: Sequence[str], also: str = "") -> list[str]:
    """The words of --fail-on; ends the command with 2 and one line at one that is not among ``expected``."""
    names: list[str] = options.fail_on.split(",")
    unknown = next((name for name in names if name not in expected), None)
    if unknown is not None:
        others = f",{also}" if also else ""
        options.parser.error(
            f"argument --fail-on: {unknown!r} is no verdict; expected a comma list of {', '.join(expected)}{others}"
        )
    return names


def bar(done: int, count: int) -> str:
    """``[######..................]``: how much of ``count`` is done."""
    filled = min(BAR * done // count, BAR) if count else BAR
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"


def read(path: Path, parser: argparse.ArgumentParser) -> Record:
    """The record in ``path``; what is none ends the command with 2 and one line."""
    try:
        return read_record(path)
    except RecordError as error:
        parser.error(printable(str(error)))


def matching(keys: Iterable[str], pattern: str) -> list[str]:
    """The keys that match a shell pattern; a pattern that is a key, brackets and all, is that key."""
    return [key for key in keys if key == pattern or fnmatch.fnmatchcase(key, pattern)]


def is_a_wheel() -> bool:
    """Whether this was installed from a wheel, which has the suites within; a checkout has them beside the package."""
    return importlib.util.find_spec("pytest_amp.suites") is not None


def whole(text: str) -> int:
    """A whole number of an option, in digits of ASCII alone, where ``int`` takes ``1_0`` for 10."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number; valid: 1, 2, 3, …")
    return int(text)


def decimal(text: str) -> float:
    """A number of an option, as the options of the plugin take them."""
    if not DECIMAL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; valid: 0.5, 60, …")
    return float(text)


def write(text: str) -> None:
    """To standard output, whole, in which what its encoding lacks becomes an escape.

    Without a reader that waits for the rest, as before ``| head``, the command ends as by SIGPIPE; where the disk is
    full, with 2 and one line. Python itself loses what did not fit, and says nothing, where it does not buffer
    (PYTHONUNBUFFERED).
    """
    if sys.stdout is None or sys.stdout.closed:  # as the shell's >&- leaves it
        if sys.stderr is not None:
            sys.stderr.write("pytest-amp: standard output: closed\n")
        sys.exit(NOT_WRITTEN)
    data = text.encode(sys.stdout.encoding or "utf-8", errors="backslashreplace")
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # another program's, as io.StringIO
        sys.stdout.write(text)
        return
    try:
        sys.stdout.flush()
        while data:
            data = data[buffer.write(data) :]
        buffer.flush()
    except OSError as error:
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, sys.stdout.fileno())  # what is left in buffers is written at the end, and fails once more
        os.close(nobody)
        if isinstance(error, BrokenPipeError):
            sys.exit(UNREAD)
        sys.stderr.write(f"pytest-amp: standard output: {error.strerror or error}\n")
        sys.exit(NOT_WRITTEN)
