"""Command ``pytest-amp join``: records of parts of one run as one record."""

from __future__ import annotations

import argparse
from functools import reduce
from pathlib import Path

from pytest_amp.cli.common import Commands, read
from pytest_amp.record import Record, RecordError, check_joinable, joined, write_record
from pytest_amp.text.quoted import printable


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "join",
        help="one record of several, such as of the suites and of speed, or of both dtypes",
        description="One record of several of one release, device and seed: on a GPU speed runs in a process of its "
        "own, after the other suites. Of checks in fp32 and tf32, which every run has, the first record's remain. "
        "Ends with 2 where the records are not of one release, device and seed, where two of them have the same fact, "
        "and where the new file exists already.",
    )
    command.add_argument("new", type=Path, help="the file to write, compressed if its name ends in .gz")
    command.add_argument(
        "records", type=Path, nargs="+", help="the records to join; the first one's provenance is kept"
    )
    command.set_defaults(run=_join, parser=command)


def _join(options: argparse.Namespace) -> int:
    named = [(str(path), read(path, options.parser)) for path in options.records]
    try:
        for other in named[1:]:
            check_joinable(named[0], other)
        write_record(reduce(_add, named)[1], options.new, replace=False)
    except (ValueError, RecordError) as error:
        options.parser.error(printable(str(error)))
    return 0


def _add(first: tuple[str, Record], second: tuple[str, Record]) -> tuple[str, Record]:
    return first[0], joined(first, second)
