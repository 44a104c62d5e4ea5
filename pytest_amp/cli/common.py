"""Shared code of the commands: exit statuses, options, input and output."""

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

#: Exit statuses, as in grep and diff. The status for an invalid file is 2, as argparse's for an invalid command line.
FOUND, NOTHING_FOUND = 0, 1
SAME, DIFFERENT = 0, 1
#: Exit status for output that could not be written, and the status that a shell reports for a process that SIGPIPE (13)
#: ended.
NOT_WRITTEN, UNREAD = 2, 128 + 13
#: Width of a progress bar in characters.
BAR = 24


def failing(*also: Verdict) -> str:
    """Return the default of --fail-on: the verdicts of ``FAILING`` and ``also``, worst first."""
    return ",".join(verdict.value for verdict in ORDER if verdict in FAILING or verdict in also)


def chosen_verdicts(options: argparse.Namespace) -> tuple[Verdict, ...]:
    """Return the verdicts of --fail-on; an unknown name is a usage error (exit status 2)."""
    return tuple(Verdict(name) for name in _words(options, [verdict.value for verdict in ORDER]))


def chosen_failures(options: argparse.Namespace) -> tuple[frozenset[Verdict], frozenset[Gap]]:
    """Return the verdicts and gaps that fail a comparison, from --fail-on.

    ``none`` selects nothing. Verdicts that are named replace the default ones. A leading minus excludes a verdict or a
    gap (``-not_run``); every gap that is not excluded fails.
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
    """Return the names of --fail-on; a name that is not in ``expected`` is a usage error (exit status 2)."""
    names: list[str] = options.fail_on.split(",")
    unknown = next((name for name in names if name not in expected), None)
    if unknown is not None:
        suffix = f",{also}" if also else ""
        options.parser.error(
            f"argument --fail-on: {unknown!r} is not a verdict; expected a comma list of {', '.join(expected)}{suffix}"
        )
    return names


def bar(done: int, count: int) -> str:
    """Return a progress bar for ``done`` of ``count``: ``[######..................]``."""
    filled = min(BAR * done // count, BAR) if count else BAR
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"


def read(path: Path, parser: argparse.ArgumentParser) -> Record:
    """Return the record in ``path``; an invalid file is a usage error (exit status 2)."""
    try:
        return read_record(path)
    except RecordError as error:
        parser.error(printable(str(error)))


def matching(keys: Iterable[str], pattern: str) -> list[str]:
    """Return the keys that match a shell pattern. A key with brackets, as of a parametrized test, matches itself."""
    return [key for key in keys if key == pattern or fnmatch.fnmatchcase(key, pattern)]


def is_a_wheel() -> bool:
    """Return whether the package is installed from a wheel: only a wheel contains ``pytest_amp.suites``."""
    return importlib.util.find_spec("pytest_amp.suites") is not None


def whole(text: str) -> int:
    """Parse a nonnegative integer of ASCII digits: ``int`` would also accept ``1_0`` as 10."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number; expected 1, 2, 3, …")
    return int(text)


def write(text: str) -> None:
    """Write all of ``text`` to standard output, with escapes for characters that its encoding lacks.

    Exit with the status of SIGPIPE if the reader has closed the pipe (``| head``), and with 2 and a one-line message if
    the output cannot be written (a full disk). The loop is for unbuffered streams (PYTHONUNBUFFERED), which may write
    only a part: ``sys.stdout.write`` would lose the remainder without an error.
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
