"""Command ``pytest-amp``: what the project knows, without a test run. It imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_amp import __version__
from pytest_amp.cli import bisect, calibrate, diff, doctor, finding, history, init, join, known, rules, show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments`` (the process's own by default) and return its exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("pytest-amp", description="What pytest-amp knows, without a test run.")
    parser.add_argument("--version", action="version", version=f"pytest-amp {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (init, finding, rules, known, show, diff, history, join, doctor, calibrate, bisect):
        command.add(commands)
    return parser
