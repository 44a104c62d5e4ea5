"""What the commands share: exit statuses, reading a record, writing."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from pytest_amp.record import Record, RecordError, read_record

#: What ``add_subparsers`` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001

#: Exit statuses, as grep and diff have them; argparse ends with 2 for a wrong command line, and so does a bad file.
FOUND, NOTHING_FOUND = 0, 1
SAME, DIFFERENT = 0, 1


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
