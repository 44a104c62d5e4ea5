"""Command ``pytest-amp finding``: the page of a finding of ``amp.check``, from the package or from a checkout."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_amp.cli.common import FOUND, NOTHING_FOUND, Commands, write

#: Pages of the folder that are about no single kind.
_OVERVIEWS = frozenset({"index", "compared"})


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "finding",
        help="the page of a finding of amp.check: why it matters, how to mend it, and when it is fine",
        description="Prints the page of a finding of amp.check: what it is, why it matters, how to mend it, and when "
        "it is fine; without a kind, all kinds. Ends with 1 where there is none of that name.",
    )
    command.add_argument("kind", nargs="?", help="the kind, as a failure has it: low-norm (default: a list of all)")
    command.set_defaults(run=_show, parser=command)


def pages() -> Mapping[str, Path]:
    """Return the page of each kind: data of an installed package, or docs/findings of a checkout."""
    package = Path(__file__).parents[1]
    folder = package / "findings"
    if not folder.is_dir():
        folder = package.parent / "docs" / "findings"
    return {path.stem: path for path in sorted(folder.glob("*.md")) if path.stem not in _OVERVIEWS}


def _show(options: argparse.Namespace) -> int:
    known = pages()
    if options.kind is None:
        width = max(map(len, known), default=0)
        write("".join(f"{kind:<{width}}  {_title(path)}\n" for kind, path in known.items()))
        return FOUND if known else NOTHING_FOUND
    if options.kind in known:
        write(known[options.kind].read_text(encoding="utf-8"))
        return FOUND
    near = ", ".join(difflib.get_close_matches(options.kind, known))
    sys.stderr.write(f"pytest-amp: no finding is called {options.kind!r}{f'; near: {near}' if near else ''}\n")
    return NOTHING_FOUND


def _title(path: Path) -> str:
    """Return the title of a page without the kind: ``statistics of a norm are low``."""
    with path.open(encoding="utf-8") as lines:
        return next(lines, "").rpartition("`: ")[2].strip()
