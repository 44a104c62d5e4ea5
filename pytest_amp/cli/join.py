"""Command ``pytest-amp join``: join several records into one."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_amp.cli.common import Commands, read
from pytest_amp.record import RecordError, check_joinable, joined, write_record
from pytest_amp.text.quoted import printable


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "join",
        help="join several records into one, such as those of the suites and of speed, or of bf16 and fp16",
        description="Join records of one torch release into one, for instance because speed runs in its own process on "
        "a GPU. The records must agree in torch, plugin, seed, tolerance scale and the hardware of their common "
        "devices. Checks in fp32 and tf32 that several records have are taken from the first. Ends with 2 if the "
        "records differ in these, if two have the same key in bf16 or fp16, and if the output exists.",
    )
    command.add_argument("output", type=Path, help="the file to write, compressed if its name ends in .gz")
    command.add_argument(
        "records", type=Path, nargs="+", help="the records to join; the first one's provenance is kept"
    )
    command.set_defaults(run=_join, parser=command)


def _join(options: argparse.Namespace) -> int:
    (name, whole), *rest = ((str(path), read(path, options.parser)) for path in options.records)
    try:
        for other in rest:
            check_joinable((name, whole), other)
            whole = joined((name, whole), other)
        write_record(whole, options.output, replace=False)
    except (ValueError, RecordError) as error:
        options.parser.error(printable(str(error)))
    return 0
