"""Command ``pytest-amp show``: the contents of a record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_amp.cli.common import FOUND, NOTHING_FOUND, Commands, matching, read, write
from pytest_amp.report.record import as_lines, as_text


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "show",
        help="what is in a record",
        description="Where a record comes from, what ran, and what it observed; ends with 1 where nothing matches.",
    )
    command.add_argument("file", type=Path, help="a file that --amp-record or --amp-report=json wrote")
    command.add_argument("pattern", nargs="?", help="a shell pattern of keys, such as 'rules/cuda/*': lists them")
    command.set_defaults(run=_show, parser=command)


def _show(options: argparse.Namespace) -> int:
    record = read(options.file, options.parser)
    if options.pattern is None:
        write(as_text(record))
        return FOUND
    known = record.by_key()
    rows = matching(known, options.pattern)
    if not rows:
        families = ", ".join(sorted({row.family for row in known.values()})) or "none"
        sys.stderr.write(
            f"pytest-amp: none of the {len(known)} keys of {options.file} matches {options.pattern!r}; "
            f"a key is family/device/dtype/name, families here: {families}\n"
        )
        return NOTHING_FOUND
    write(as_lines(known[key] for key in rows))
    return FOUND
