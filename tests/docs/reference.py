"""The pages of the reference that are made of what the package says itself: ``python -m tests.docs.reference``."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator

from pytest_amp import fixtures, markers
from pytest_amp.amp import Amp
from pytest_amp.cli import _parser
from pytest_amp.config import OPTIONS
from tests.project import ROOT

FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- python -m tests.docs.reference -->"


def options() -> str:
    """Each option with its ini key and what its help says."""
    lines = ["# Options", MADE, "", "The command line wins over ini; the header says where each value came from.", ""]
    lines += ["| option | ini key | what it is |", "|---|---|---|"]
    for option in OPTIONS:
        value = "" if option.flag else f"={option.metavar}"
        lines.append(f"| `{option.name}{value}` | `{option.ini}` | {_cell(option.help)} |")
    return "\n".join([*lines, ""])


def fixtures_and_markers() -> str:
    """Each fixture with the first sentence of its docstring, each check of ``amp``, each marker."""
    lines = ["# Fixtures and markers", MADE, "", "| fixture | what it is |", "|---|---|"]
    public = sorted(name for name in fixtures.NAMES if not name.startswith("_"))
    lines += [f"| `{name}` | {_sentence(getattr(fixtures, name))} |" for name in public]
    lines += ["", "| of `amp` | what it does |", "|---|---|"]
    for name, value in sorted(inspect.getmembers(Amp)):
        if not name.startswith("_") and inspect.getdoc(value):
            call = f"{name}{_signature(value)}" if callable(value) else name
            lines.append(f"| `{_cell(call)}` | {_sentence(value)} |")
    lines += ["", "| marker | what it does |", "|---|---|"]
    for line in markers.LINES:
        marker, _, what = line.partition(": ")
        lines.append(f"| `{_cell(marker)}` | {_cell(what)} |")
    return "\n".join([*lines, ""])


def commands() -> str:
    """Each command of ``pytest-amp`` with its arguments."""
    parser = _parser()
    lines = [
        "# Commands",
        MADE,
        "",
        "`pytest-amp COMMAND`, or `python -m pytest_amp COMMAND`. No command imports torch here.",
    ]
    (subparsers,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    for name, command in subparsers.choices.items():
        lines += ["", f"## {name}", "", _cell(command.description or ""), "", "| argument | what it is |", "|---|---|"]
        lines += _arguments(command)
    return "\n".join([*lines, ""])


def _arguments(command: argparse.ArgumentParser) -> Iterator[str]:
    for action in command._actions:
        if action.help is argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        names = ", ".join(action.option_strings) or action.dest
        given = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
        value = f" {given}" if given and action.option_strings and action.nargs != 0 else ""
        text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        yield f"| `{_cell(names + value)}` | {_cell(text)} |"


def _signature(value: Callable[..., object]) -> str:
    parameters = [p for p in inspect.signature(value).parameters.values() if p.name != "self"]
    words: list[str] = []
    for each in parameters:
        star = "*, " if each.kind is each.KEYWORD_ONLY and "*, " not in "".join(words) else ""
        words.append(f"{star}{each.name}" + ("" if each.default is each.empty else f"={each.default!r}"))
    return f"({', '.join(words)})"


def _sentence(value: object) -> str:
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return _cell(text)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


PAGES = {"options.md": options, "fixtures.md": fixtures_and_markers, "commands.md": commands}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make(), encoding="utf-8")
