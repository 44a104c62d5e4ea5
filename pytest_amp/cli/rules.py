"""Command ``pytest-amp rules``: autocast's rules for an operator."""

from __future__ import annotations

import argparse
import difflib
import sys

from pytest_amp.cli.common import FOUND, NOTHING_FOUND, Commands, write
from pytest_amp.rules import lookup
from pytest_amp.rules.spec import Spec, load_spec


def add(commands: Commands) -> None:
    """Add the command."""
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
        write(lookup.as_markdown(spec))
        return FOUND
    names: list[str] = []
    status = FOUND
    for pattern in options.operator or ["*"]:
        rows = lookup.matching(spec, pattern)
        names += [name for name in rows if name not in names]
        if not rows:
            status = NOTHING_FOUND
            sys.stderr.write(f"pytest-amp: {_unknown(spec, pattern)}\n")
    if names:
        write(lookup.as_text(spec, names, options.device or list(spec.device_types)) + "\n")
    return status


def _unknown(spec: Spec, pattern: str) -> str:
    known = sorted({name.partition(".")[0] for name in lookup.matching(spec, "*")})
    near = difflib.get_close_matches(pattern, known, n=3)
    return (
        f"no rule is known for {pattern!r} on any device type: an operator without one runs in the dtypes"
        " that it is given" + (f"; near: {', '.join(near)}" if near else "")
    )
