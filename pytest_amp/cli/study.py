"""Command ``pytest-amp study transformer``: speed and memory of a transformer in each precision, and why."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_amp.cli.common import Commands, bar, decimal, write
from pytest_amp.devices.probe import probe_in_child
from pytest_amp.study import grid

#: Exit statuses: every cell is measured, or some are left.
WHOLE, PARTLY = 0, 1


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "study",
        help="long measurements: how a transformer's speed and memory depend on size, context and precision",
        description="Measures a decoder in every chosen combination and writes each result at once, so that a run that "
        "is stopped goes on where it was; running out of memory is a result. Then writes tables (Markdown) and, with "
        "matplotlib, plots (PNG and SVG). Ends with 1 where cells are left.",
    )
    command.add_argument("study", choices=("transformer",), help="a decoder of GPT's kind")
    command.add_argument("--to", type=Path, default=Path("study"), help="the folder (default: study)")
    command.add_argument("--device", default="cuda", help="default: cuda")
    _choice(command, "--sizes", tuple(grid.SIZES), str)
    _choice(command, "--contexts", grid.CONTEXTS, int, any_value=True)
    _choice(command, "--batches", grid.BATCHES, int, any_value=True)
    _choice(command, "--precisions", grid.PRECISIONS, str)
    _choice(command, "--attentions", grid.ATTENTIONS, str)
    _choice(command, "--modes", grid.MODES, str)
    _choice(command, "--warm-ups", ("own", "fp32"), str, default=grid.WARM_UPS)
    command.add_argument("--seconds", type=decimal, help="begin no further cell after so many seconds")
    command.add_argument("--only-report", action="store_true", help="measure nothing; write the tables and plots anew")
    command.set_defaults(run=_study, parser=command)


def _choice(  # noqa: PLR0913  # keywords of one option
    command: argparse.ArgumentParser,
    name: str,
    valid: Sequence[object],
    kind: Callable[[str], object],
    *,
    any_value: bool = False,
    default: Sequence[object] | None = None,
) -> None:
    """Add an option with a comma list, all values by default."""
    shown, names = ",".join(map(str, default or valid)), [str(each) for each in valid]

    def parse(text: str) -> tuple[object, ...]:
        words = [word.strip() for word in text.split(",")]
        unknown = [
            word for word in words if word not in names and not (any_value and re.fullmatch("[1-9][0-9]*", word))
        ]
        if unknown:
            others = ", and any other from 1" * any_value
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}; expected {', '.join(names)}{others}")
        return tuple(map(kind, words))

    command.add_argument(name, type=parse, default=tuple(default or valid), help=f"comma list (default: {shown})")


def _study(options: argparse.Namespace) -> int:
    from pytest_amp.study import report, results

    try:
        path = options.to / "transformer.jsonl"
        if not options.only_report:
            found = None if options.device == "cpu" else probe_in_child([options.device])[options.device]
            if found is not None and not found.works:
                options.parser.error(f"argument --device: {options.device} does not compute here: {found.reason}")
            options.to.mkdir(parents=True, exist_ok=True)
            left = _measure(options, path)
        else:
            left = 0
        read = results.read(path)
    except (results.ResultsError, OSError) as error:
        sys.stderr.write(f"pytest-amp: {error}\n")
        return PARTLY
    for written in report.write_report(read, options.to):
        write(f"wrote {written}\n")
    return PARTLY if left else WHOLE


def _measure(options: argparse.Namespace, path: Path) -> int:
    """Measure the missing cells; return the number of remaining ones."""
    from pytest_amp.devices import find_device
    from pytest_amp.study import provenance, results, transformer

    device = find_device(options.device)
    names = ("sizes", "contexts", "batches", "precisions", "attentions", "modes", "warm_ups")
    chosen = grid.Choice(**{name: getattr(options, name) for name in names})
    kept = results.Results(path, provenance.of(device))
    missing = kept.missing(chosen.cells())
    began = time.perf_counter()
    for number, cell in enumerate(missing):
        elapsed = time.perf_counter() - began
        if options.seconds is not None and elapsed > options.seconds:
            sys.stderr.write(f"\n{len(missing) - number} cells are left; the same command goes on\n")
            return len(missing) - number
        _progress(number, len(missing), elapsed, str(cell))
        kept.add(cell, transformer.measure(cell, device))
    _progress(len(missing), len(missing), time.perf_counter() - began, "")
    sys.stderr.write("\n")
    return 0


def _progress(done: int, count: int, elapsed: float, what: str) -> None:
    """Write progress in one line, over the previous one."""
    left = f", {elapsed / done * (count - done):.0f} s left" if done else ""
    line = f"{bar(done, count)} {done}/{count}{left} {what}"
    sys.stderr.write(f"\r{line:<110}")
    sys.stderr.flush()
