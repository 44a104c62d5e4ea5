"""Command ``pytest-amp known``: the known faults of torch, and the releases that have them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_amp.cli.common import FOUND, NOTHING_FOUND, Commands, write
from pytest_amp.data_files.releases import Release, release_of
from pytest_amp.known.expected import faults_of_the_suites
from pytest_amp.known.rows import chosen, read_known
from pytest_amp.precision import LOW
from pytest_amp.report.faults import as_markdown, as_text


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "known",
        help="the known faults of torch, each with its report, and the releases that have it",
        description="The known faults of torch: the tests that show each, its reason, its report, and the releases "
        "with it. Ends with 1 where there is none.",
    )
    command.add_argument(
        "key", nargs="?", help="of tests whose keys have this, or match a pattern: semantics, 'compile/*'"
    )
    command.add_argument("--torch", metavar="RELEASE", type=_release, help="of this release: 2.13 (default: of any)")
    command.add_argument("--device", help="on this device: cpu, cuda, fake:cuda (default: any)")
    command.add_argument("--dtype", choices=list(LOW), help="in this dtype (default: any)")
    command.add_argument("--format", choices=("text", "md"), default="text", help="md: a table of Markdown")
    command.add_argument("--file", type=Path, help="a file for --amp-known (default: the one of the suites)")
    command.set_defaults(run=_list, parser=command)


def _release(text: str) -> Release:
    try:
        return release_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a release; expected one such as 2.13") from None


def _list(options: argparse.Namespace) -> int:
    try:
        faults = read_known(options.file or faults_of_the_suites())
    except ValueError as error:
        options.parser.error(str(error))
    device = options.device.replace(":", "-") if options.device else None
    rows = chosen(faults, release=options.torch, device=device, dtype=options.dtype, key=options.key)
    if not rows:
        sys.stderr.write(f"pytest-amp: none of the {len(faults)} known faults matches\n")
        return NOTHING_FOUND
    write(as_markdown(rows) if options.format == "md" else f"{as_text(rows)}\n")
    return FOUND
