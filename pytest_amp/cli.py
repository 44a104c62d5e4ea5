"""The command ``pytest-amp``: what the project knows, without a test run. It imports no torch."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_amp import __version__
from pytest_amp.record import FAILING, Difference, Record, RecordError, Verdict, difference, read_record
from pytest_amp.record.difference import ORDER
from pytest_amp.report import difference as differences
from pytest_amp.report.record import as_text
from pytest_amp.rules import lookup
from pytest_amp.rules.spec import Spec, load_spec

#: Exit statuses, as grep and diff have them; argparse ends with 2 for a wrong command line, and so does a bad file.
FOUND, NOTHING_FOUND = 0, 1
SAME, DIFFERENT = 0, 1

FORMATS: dict[str, Callable[[Difference], str]] = {
    "text": differences.as_text,
    "md": differences.as_markdown,
    "json": differences.as_json,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments`` (the process's own by default) and return its exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("pytest-amp", description="What pytest-amp knows, without a test run.")
    parser.add_argument("--version", action="version", version=f"pytest-amp {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_rules(commands)
    _add_show(commands)
    _add_diff(commands)
    return parser


def _add_rules(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    devices = list(load_spec().device_types)
    command = commands.add_parser(
        "rules",
        help="what autocast does with an operator, on every device type, and since when",
        description="What autocast does with an operator, on every device type, and since when.",
    )
    command.add_argument(
        "operator", nargs="*", help="softmax, softmax.int or a pattern such as '*norm*'; all by default"
    )
    command.add_argument("--device", action="append", choices=devices, help="this device type only; repeatable")
    command.add_argument("--format", choices=("text", "md"), default="text", help="md: the page with the whole table")
    command.set_defaults(run=_rules, parser=command)


def _rules(options: argparse.Namespace) -> int:
    spec = load_spec()
    if options.format == "md":
        if options.operator or options.device:
            options.parser.error("--format=md is the whole table; it takes no operator and no --device")
        _write(lookup.as_markdown(spec))
        return FOUND
    names: list[str] = []
    status = FOUND
    for pattern in options.operator or ["*"]:
        found = lookup.matching(spec, pattern)
        names += [name for name in found if name not in names]
        if not found:
            status = NOTHING_FOUND
            sys.stderr.write(f"pytest-amp: {_unknown(spec, pattern)}\n")
    if names:
        _write(lookup.as_text(spec, names, options.device or list(spec.device_types)) + "\n")
    return status


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "show",
        help="what is in a record",
        description="Where a record comes from, what ran, and what it observed.",
    )
    command.add_argument("file", type=Path, help="a file that --amp-record or --amp-report=json wrote")
    command.add_argument("pattern", nargs="?", help="a shell pattern of keys, such as 'rules/cuda/*': lists them")
    command.set_defaults(run=_show, parser=command)


def _show(options: argparse.Namespace) -> int:
    record = _read(options.file, options.parser)
    _write(as_text(record, options.pattern))
    return FOUND


def _add_diff(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "diff",
        help="what differs between two records",
        description="What differs between two records; ends with 1 where something has that --fail-on names.",
    )
    command.add_argument("old", type=Path, help="a record, before")
    command.add_argument("new", type=Path, help="a record, after")
    command.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    default = ",".join(verdict.value for verdict in ORDER if verdict in FAILING)
    command.add_argument(
        "--fail-on",
        metavar="VERDICTS",
        default=default,
        help=f"comma list of {', '.join(verdict.value for verdict in ORDER)}, or none (default: {default})",
    )
    command.set_defaults(run=_diff, parser=command)


def _diff(options: argparse.Namespace) -> int:
    names = [] if options.fail_on == "none" else options.fail_on.split(",")
    valid = [verdict.value for verdict in ORDER]
    unknown = next((name for name in names if name not in valid), None)
    if unknown is not None:
        options.parser.error(f"argument --fail-on: {unknown!r} is no verdict; valid: {', '.join(valid)}, or none")
    found = difference(_read(options.old, options.parser), _read(options.new, options.parser))
    _write(FORMATS[options.format](found))
    return DIFFERENT if any(found.of(Verdict(name)) for name in names) else SAME


def _read(path: Path, parser: argparse.ArgumentParser) -> Record:
    try:
        return read_record(path)
    except RecordError as error:
        parser.error(str(error))


def _unknown(spec: Spec, pattern: str) -> str:
    known = sorted({name.partition(".")[0] for name in lookup.matching(spec, "*")})
    near = difflib.get_close_matches(pattern, known, n=3)
    return (
        f"no rule is known for {pattern!r} on any device type: an operator without one runs in the dtypes"
        " that it is given" + (f"; near: {', '.join(near)}" if near else "")
    )


def _write(text: str) -> None:
    sys.stdout.write(text)
