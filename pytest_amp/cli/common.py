"""What the commands share: exit statuses, options, reading a record, writing."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from pytest_amp.record import FAILING, ORDER, Record, RecordError, Verdict, read_record

#: What ``add_subparsers`` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

#: Exit statuses, as grep and diff have them; argparse ends with 2 for a wrong command line, and so does a bad file.
FOUND, NOTHING_FOUND = 0, 1
SAME, DIFFERENT = 0, 1
#: Signs of a bar that says how far a command is.
BAR = 24


def failing(*also: Verdict) -> str:
    """The default of --fail-on: what fails a comparison, and ``also``, worst first."""
    return ",".join(verdict.value for verdict in ORDER if verdict in FAILING or verdict in also)


def chosen_verdicts(options: argparse.Namespace, *, none: bool = False) -> tuple[Verdict, ...]:
    """What --fail-on names; a word that is no verdict ends the command with 2 and one line. ``none`` may be none."""
    if none and options.fail_on == "none":
        return ()
    names, valid = options.fail_on.split(","), [verdict.value for verdict in ORDER]
    unknown = next((name for name in names if name not in valid), None)
    if unknown is not None:
        others = ", or none" * none
        options.parser.error(f"argument --fail-on: {unknown!r} is no verdict; valid: {', '.join(valid)}{others}")
    return tuple(map(Verdict, names))


def bar(done: int, count: int) -> str:
    """``[######..................]``: how much of ``count`` is done."""
    filled = min(BAR * done // count, BAR) if count else BAR
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"


def read(path: Path, parser: argparse.ArgumentParser) -> Record:
    """The record in ``path``; what is none ends the command with 2 and one line."""
    try:
        return read_record(path)
    except RecordError as error:
        parser.error(str(error))


def matching(keys: Iterable[str], pattern: str) -> list[str]:
    """The keys that match a shell pattern; a pattern that is a key, brackets and all, is that key."""
    return [key for key in keys if key == pattern or fnmatch.fnmatchcase(key, pattern)]


def is_a_wheel() -> bool:
    """Whether this was installed from a wheel, which has the suites within; a checkout has them beside the package."""
    return importlib.util.find_spec("pytest_amp.suites") is not None


def write(text: str) -> None:
    """To standard output, in which what its encoding lacks becomes an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
