"""Command ``pytest-amp history``: one table of several releases of torch, by back end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_amp.cli.common import Commands, read, write
from pytest_amp.record import History, history
from pytest_amp.report import history as table


def _html(releases: History) -> str:
    from pytest_amp.report.html import of_history

    return of_history(releases)


FORMATS: dict[str, Callable[[History], str]] = {"md": table.as_markdown, "html": _html, "json": table.as_json}


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "history",
        help="one table of several releases of torch, by back end",
        description="One table with a column for each release of torch and a group of rows for each back end: rules "
        "that changed, operators that became better or worse, speedups, tests that fail, and counts of all other "
        "changes, each with its known reason. A record may have several devices and dtypes, and a release several "
        "records; their order does not matter. Ends with 2 where the records are of fewer than two releases, or two of "
        "them have the same fact of one release.",
    )
    command.add_argument("records", type=Path, nargs="+", help="records of two or more releases")
    command.add_argument("--format", choices=FORMATS, default="md", help="default: md")
    command.set_defaults(run=_history, parser=command)


def _history(options: argparse.Namespace) -> int:
    records = {str(path): read(path, options.parser) for path in options.records}
    try:
        text = FORMATS[options.format](history(records))
    except ValueError as error:
        options.parser.error(str(error))
    except ModuleNotFoundError as missing:
        sys.stderr.write(
            f"pytest-amp: --format={options.format}: {missing.name} is not installed; pip install 'pytest-amp[html]'\n"
        )
        return 2
    write(text)
    return 0
