"""Measure a transformer in each precision: ``python -m tools.study [--to FOLDER]`` writes tables and plots.

Each result is written at once, so that an interrupted run is resumed by the same command. Running out of memory is a
result. Plots need matplotlib. The exit status is 1 if cells are missing.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from pytest_amp.cli.common import bar
from pytest_amp.devices import find_device
from pytest_amp.devices.probe import probe_in_child
from tools.study import grid, plots, report, results, transformer

#: Exit statuses: every cell is measured, or some are missing.
WHOLE, PARTLY = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the missing cells, and write the tables and plots; return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    path = options.to / "transformer.jsonl"
    missing = 0
    try:
        if not options.only_report:
            probed = None if options.device == "cpu" else probe_in_child([options.device])[options.device]
            if probed is not None and not probed.works:
                parser.error(f"argument --device: {options.device} does not compute here: {probed.reason}")
            options.to.mkdir(parents=True, exist_ok=True)
            missing = _measure(options, path)
        measured = results.read(path)
    except (results.ResultsError, OSError) as error:
        sys.stderr.write(f"tools.study: {error}\n")
        return PARTLY
    for written in write_report(measured, options.to):
        sys.stdout.write(f"wrote {written}\n")
    return PARTLY if missing else WHOLE


def write_report(measured: results.Results, folder: Path) -> list[Path]:
    """Write ``transformer.md`` and, with matplotlib, the plots; return the written files."""
    pictures = plots.write_plots(measured, folder)
    page = folder / "transformer.md"
    page.write_text(report.as_markdown(measured, [path.name for path in pictures]), encoding="utf-8")
    return [page, *pictures]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.study", description=__doc__)
    parser.add_argument("--to", type=Path, default=Path("study"), help="the folder (default: study)")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    _choice(parser, "--sizes", tuple(grid.SIZES), str)
    _choice(parser, "--contexts", grid.CONTEXTS, int, any_value=True)
    _choice(parser, "--batches", grid.BATCHES, int, any_value=True)
    _choice(parser, "--precisions", grid.PRECISIONS, str)
    _choice(parser, "--attentions", grid.ATTENTIONS, str)
    _choice(parser, "--modes", grid.MODES, str)
    _choice(parser, "--warm-ups", ("own", "fp32"), str, default=grid.WARM_UPS)
    parser.add_argument("--seconds", type=float, help="begin no further cell after so many seconds")
    parser.add_argument("--only-report", action="store_true", help="measure nothing; write the tables and plots anew")
    return parser


def _choice(  # noqa: PLR0913  # keywords of one option
    parser: argparse.ArgumentParser,
    name: str,
    valid: Sequence[object],
    kind: Callable[[str], object],
    *,
    any_value: bool = False,
    default: Sequence[object] | None = None,
) -> None:
    """Add an option with a comma list, all values by default."""
    shown, names = ",".join(map(str, default or valid)), [str(option) for option in valid]

    def parse(text: str) -> tuple[object, ...]:
        words = [word.strip() for word in text.split(",")]
        unknown = [
            word for word in words if word not in names and not (any_value and re.fullmatch("[1-9][0-9]*", word))
        ]
        if unknown:
            suffix = ", and any other from 1" * any_value
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}; expected {', '.join(names)}{suffix}")
        return tuple(map(kind, words))

    parser.add_argument(name, type=parse, default=tuple(default or valid), help=f"comma list (default: {shown})")


def _measure(options: argparse.Namespace, path: Path) -> int:
    """Measure the missing cells; return the number of remaining ones."""
    device = find_device(options.device)
    names = ("sizes", "contexts", "batches", "precisions", "attentions", "modes", "warm_ups")
    chosen = grid.Choice(**{name: getattr(options, name) for name in names})
    retained = results.Results(path, {"torch": str(torch.__version__), **device.provenance()})
    missing = retained.missing(chosen.cells())
    began = time.perf_counter()
    for number, cell in enumerate(missing):
        elapsed = time.perf_counter() - began
        if options.seconds is not None and elapsed > options.seconds:
            sys.stderr.write(f"\n{len(missing) - number} cells are left; the same command goes on\n")
            return len(missing) - number
        _progress(number, len(missing), elapsed, str(cell))
        retained.add(cell, transformer.measure(cell, device))
    _progress(len(missing), len(missing), time.perf_counter() - began, "")
    sys.stderr.write("\n")
    return 0


def _progress(done: int, count: int, elapsed: float, what: str) -> None:
    """Write progress in one line, over the previous one."""
    left = f", {elapsed / done * (count - done):.0f} s left" if done else ""
    line = f"{bar(done, count)} {done}/{count}{left} {what}"
    sys.stderr.write(f"\r{line:<110}")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
