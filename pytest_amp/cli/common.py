"""Parts that the commands share: exit statuses, options, reading a record, writing."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from pytest_amp.record import FAILING, ORDER, Gap, Record, RecordError, Verdict, read_record
from pytest_amp.text.quoted import printable

#: Return type of ``add_subparsers``; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

#: Exit statuses, as of grep and diff; argparse ends with 2 for a wrong command line, and a bad file does the same.
FOUND, NOTHING_FOUND = 0, 1
SAME, DIFFERENT = 0, 1
#: Exit status for output that could not be written, and a shell's status for a process whose reader has closed.
NOT_WRITTEN, UNREAD = 2, 128 + 13
#: Width of a progress bar in characters.
BAR = 24


def failing(*also: Verdict) -> str:
    """Return the default of --fail-on: the verdicts that fail a comparison, and ``also``, worst first."""
    return ",".join(verdict.value for verdict in ORDER if verdict in FAILING or verdict in also)


def chosen_verdicts(options: argparse.Namespace) -> tuple[Verdict, ...]:
    """Return the verdicts of --fail-on; an unknown word ends the command with 2 and one line."""
    return tuple(Verdict(name) for name in _words(options, [verdict.value for verdict in ORDER]))


def chosen_failures(options: argparse.Namespace) -> tuple[frozenset[Verdict], frozenset[Gap]]:
    """Return the verdicts and gaps that fail a comparison, from --fail-on.

    ``none`` stands for no verdict and no gap. Named verdicts replace the default ones. Every gap fails unless it is
    excepted: ``-not_run``. An excepted verdict is removed from the default ones.
    """
    if options.fail_on == "none":
        return frozenset(), frozenset()
    verdicts, gaps = ([name.value for name in group] for group in (ORDER, Gap))
    names = _words(options, [*verdicts, *(f"-{name}" for name in (*gaps, *verdicts))], " or none")
    excepted = {name.removeprefix("-") for name in names if name.startswith("-")}
    named = {Verdict(name) for name in names if not name.startswith("-")} or FAILING
    return (
        frozenset(verdict for verdict in named if verdict.value not in excepted),
        frozenset(gap for gap in Gap if gap.value not in excepted),
    )


def _words(options: argparse.Namespace, expected: Sequence[str], also: str = "") -> list[str]:
    """Return the words of --fail-on; a word outside ``expected`` ends the command with 2 and one line."""
    names: list[str] = options.fail_on.split(",")
    unknown = next((name for name in names if name not in expected), None)
    if unknown is not None:
        suffix = f",{also}" if also else ""
        options.parser.error(
            f"argument --fail-on: {unknown!r} is no verdict; expected a comma list of {', '.join(expected)}{suffix}"
        )
    return names


def bar(done: int, count: int) -> str:
    """Return a bar that shows the done share of ``count``: ``[######..................]``."""
    filled = min(BAR * done // count, BAR) if count else BAR
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"


def read(path: Path, parser: argparse.ArgumentParser) -> Record:
    """Return the record in ``path``; an invalid file ends the command with 2 and one line."""
    try:
        return read_record(path)
    except RecordError as error:
        parser.error(printable(str(error)))


def matching(keys: Iterable[str], pattern: str) -> list[str]:
    """Return the keys that match a shell pattern; a pattern that is itself a key, with brackets, matches that key."""
    return [key for key in keys if key == pattern or fnmatch.fnmatchcase(key, pattern)]


def is_a_wheel() -> bool:
    """Return whether this is installed from a wheel, which contains the suites, unlike a checkout."""
    return importlib.util.find_spec("pytest_amp.suites") is not None


def whole(text: str) -> int:
    """Parse a whole number of an option, ASCII digits only: ``int`` would read ``1_0`` as 10."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number; expected 1, 2, 3, …")
    return int(text)


def write(text: str) -> None:
    """Write all of ``text`` to standard output, with escapes for characters that its encoding lacks.

    If the reader has closed, as before ``| head``, the command ends as by SIGPIPE; on a full disk, with 2 and one line.
    Python itself loses the unwritten rest without an error if it does not buffer (PYTHONUNBUFFERED).
    """
    if sys.stdout is None or sys.stdout.closed:  # the shell's >&- closes it
        if sys.stderr is not None:
            sys.stderr.write("pytest-amp: standard output: closed\n")
        sys.exit(NOT_WRITTEN)
    data = text.encode(sys.stdout.encoding or "utf-8", errors="backslashreplace")
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # a text stream without a buffer, such as io.StringIO
        sys.stdout.write(text)
        return
    try:
        sys.stdout.flush()
        while data:
            data = data[buffer.write(data) :]
        buffer.flush()
    except OSError as error:
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, sys.stdout.fileno())  # buffered output is written at exit, and would fail again
        os.close(nobody)
        if isinstance(error, BrokenPipeError):
            sys.exit(UNREAD)
        sys.stderr.write(f"pytest-amp: standard output: {error.strerror or error}\n")
        sys.exit(NOT_WRITTEN)
