"""Command ``pytest-amp diff``: the differences between two records, or in a history of records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_amp.cli.common import DIFFERENT, SAME, Commands, chosen_failures, failing, read, write
from pytest_amp.record import ORDER, Difference, Gap, Trend, difference, trend
from pytest_amp.report import differences
from pytest_amp.report import trend as trends


def _html(compared: Difference) -> str:
    from pytest_amp.report.html import of_difference

    return of_difference(compared)


def _html_of_trend(history: Trend) -> str:
    from pytest_amp.report.html import of_trend

    return of_trend(history)


FORMATS: dict[str, Callable[[Difference], str]] = {
    "text": differences.as_text,
    "md": differences.as_markdown,
    "html": _html,
    "json": differences.as_json,
}
TREND_FORMATS: dict[str, Callable[[Trend], str]] = {
    "text": trends.as_text,
    "md": trends.as_markdown,
    "html": _html_of_trend,
    "json": trends.as_json,
}


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "diff",
        help="what differs between two records, or in a history of them",
        description="What differs between two records. Several records, oldest first, are a history: the changes of "
        "each step, and those from the first record to the last. Ends with 1 if a verdict that --fail-on names occurs "
        "from the first record to the last or in the last step, or if the comparison has a gap: the records share "
        "nothing on a device and dtype, a run was interrupted, or some tests of the first record did not run in full.",
    )
    command.add_argument("old", type=Path, help="a record, before")
    command.add_argument("new", type=Path, nargs="+", help="a record, after; more of them are a history")
    command.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    verdicts = ", ".join(verdict.value for verdict in ORDER)
    gaps = ", ".join(f"-{gap.value}" for gap in Gap)
    command.add_argument(
        "--fail-on",
        metavar="WORDS",
        default=failing(),
        help=f"comma list of {verdicts} (default: {failing()}). A gap fails, too, unless it is excepted: {gaps}; "
        "-gone excepts a verdict from the default ones. Or none: end with 0 whatever differs",
    )
    command.set_defaults(run=_diff, parser=command)


def _diff(options: argparse.Namespace) -> int:
    verdicts, gaps = chosen_failures(options)
    records = [read(path, options.parser) for path in (options.old, *options.new)]
    judged: list[Difference]
    try:
        if len(records) == 2:
            compared = difference(*records)
            judged = [compared]
            text = FORMATS[options.format](compared)
        else:
            history = trend(records)
            judged = [history.whole, history.steps[-1]]
            text = TREND_FORMATS[options.format](history)
    except ModuleNotFoundError as missing:
        sys.stderr.write(
            f"pytest-amp: --format={options.format}: {missing.name} is not installed; pip install 'pytest-amp[html]'\n"
        )
        return 2
    write(text)
    failed = any(result.of(verdict) for result in judged for verdict in verdicts) or any(
        gap in result.gaps for result in judged for gap in gaps
    )
    return DIFFERENT if failed else SAME
