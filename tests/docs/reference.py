"""Pages of the reference that are generated from the package: ``python -m tests.docs.reference``."""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest_amp
from pytest_amp import fixtures, markers
from pytest_amp.amp import Amp
from pytest_amp.cases import Case
from pytest_amp.cli import _parser
from pytest_amp.config import OPTIONS
from pytest_amp.devices import Device, DeviceType
from pytest_amp.devices.accelerator import AcceleratorDevice
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.families import Family
from pytest_amp.precision import Precision
from pytest_amp.record import Kind, Observation, Record, read_record
from pytest_amp.run.targets import Target
from pytest_amp.scaler.iteration import Iteration
from tests.project import ROOT

FOLDER = ROOT / "docs" / "reference"
GENERATED = "<!-- python -m tests.docs.reference -->"


INI = """
The command line wins over the ini file; the header of a run shows the source of each value. The value of an ini key is
text: quoted in TOML, without quotes in `pytest.ini` and `tox.ini`. A relative path starts at the folder of that file.

```toml
# pyproject.toml
[tool.pytest]
amp_device = "cpu,fake:cuda"
amp_seed = "3"
amp_strict = "true"
```

```ini
# pytest.ini
[pytest]
amp_device = cpu,fake:cuda
amp_report =
    md:changes.md
    json:run.json
```
"""

DEVICES = """
## Devices

- `auto` is the accelerator if it really computes (a small product under autocast must be right), else the CPU.
- A device that is named and does not compute is refused: pytest ends with 4.
- A fake device (`fake:cuda`) has CUDA's rules and no arithmetic: torch's autocast kernels for CUDA run on tensors
  without values. It runs only if it is named.
- Under pytest-xdist (`-n`), each worker gets its own GPU where `cuda` is named. Speed is timed only if there are no
  more workers than GPUs.

## Reports

`--amp-report` may be repeated. `json:PATH` writes the record into a file that may exist. `md:PATH` is a page of what
ran, failed and changed. `html:PATH` adds plots and a table of all observations, in one file without network; it needs
`jinja2`. `github` adds the page to the summary of the running job of GitHub Actions.
[The record of a run](record.md#reports) describes them.
"""


def options() -> str:
    """Return each option with its ini key and its help text."""
    lines = [
        "# Options",
        GENERATED,
        "",
        "For everybody who runs pytest-amp: its options of pytest, and their ini keys.",
    ]
    lines += [INI, "| option | ini key | what it is |", "|---|---|---|"]
    for option in OPTIONS:
        value = "" if option.flag else f"={option.metavar}"
        lines.append(f"| `{option.name}{value}` | `{option.ini}` | {_cell(option.help)} |")
    return "\n".join([*lines, DEVICES])


GUARD = """
A test that requests one of these fixtures runs once for each selected device and dtype, as `test_my_model[cuda-bf16]`.
It is seeded and runs on one CPU thread. If it leaves torch's state changed (autocast, default dtype, TF32,
deterministic flags, grad mode, …), that state is restored, and the test errors.
"""


def fixtures_and_markers() -> str:
    """Return each fixture with the first sentence of its docstring, each check of ``amp``, each marker."""
    lines = [
        "# Fixtures and markers",
        GENERATED,
        "",
        "For authors of tests: fixtures and markers of pytest-amp.",
        GUARD,
    ]
    lines += ["| fixture | what it is |", "|---|---|"]
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


def checks() -> str:
    """Return each member of ``amp``, with its whole docstring."""
    lines = [
        "# The checks of `amp`",
        GENERATED,
        "",
        "For authors of tests: members of the fixture `amp`, alphabetically.",
    ]
    for name, value in sorted(inspect.getmembers(Amp)):
        if not name.startswith("_") and inspect.getdoc(value):
            call = f"amp.{name}{_signature(value)}" if callable(value) else f"amp.{name}"
            lines += ["", f"## {name}", "", "```text", call, "```", "", _prose(value)]
    return "\n".join([*lines, ""])


#: Imports of a project, in addition to the fixtures.
IMPORTED = (
    Case,
    DeviceType,
    Device,
    AcceleratorDevice,
    Target,
    Precision,
    Iteration,
    Family,
    Observation,
    Kind,
    Record,
)


def python() -> str:
    """Return the classes and functions that a project may import, with their public members."""
    lines = [
        "# Python",
        GENERATED,
        "",
        "For authors of projects and back ends: the names to import for hooks, devices, cases and readers of records.",
        "From the package itself:",
        "",
        "```python",
        "from pytest_amp import Amp, AmpFailure, AmpUsageError, Case, read_record",
        "```",
        "",
        "Each is imported on first use. `Amp` is the type of the fixture `amp`: [its checks](checks.md).",
    ]
    for item in (*IMPORTED, read_record, AmpFailure, AmpUsageError):
        shown = item.__name__ if isinstance(item, enum.EnumMeta) else f"{item.__name__}{_arguments_of(item)}"
        lines += ["", f"## {item.__name__}", "", "```text", f"{_home(item)}.{shown}", "```", "", _prose(item)]
        if isinstance(item, enum.EnumMeta):
            values: list[Any] = list(item)
            lines += ["", f"Its values: {', '.join(f'`{value.value}`' for value in values)}."]
        members = [
            (name, value)
            for name, value in sorted(vars(item).items())
            if not name.startswith("_") and (isinstance(value, property) or inspect.isfunction(value))
        ]
        if members and inspect.isclass(item):
            lines += ["", "| member | what it is |", "|---|---|"]
            for name, value in members:
                call = f"{name}{_signature(value)}" if inspect.isfunction(value) else name
                lines.append(f"| `{_cell(call)}` | {_sentence(value)} |")
    return "\n".join([*lines, ""])


def commands() -> str:
    """Return each command of ``pytest-amp`` with its arguments."""
    parser = _parser()
    lines = [
        "# Commands",
        GENERATED,
        "",
        "For users of the command line: `pytest-amp COMMAND`, or `python -m pytest_amp COMMAND`, and its arguments.",
        "Only `init` imports torch in this process.",
    ]
    (subparsers,) = (_action for _action in parser._actions if isinstance(_action, argparse._SubParsersAction))
    for name, command in subparsers.choices.items():
        lines += ["", f"## {name}", "", _cell(command.description or ""), "", "| argument | what it is |", "|---|---|"]
        lines += _arguments(command)
    return "\n".join([*lines, ""])


def _arguments(command: argparse.ArgumentParser) -> Iterator[str]:
    for action in command._actions:
        if action.help is argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        names = ", ".join(action.option_strings) or action.dest
        metavar = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
        value = f" {metavar}" if metavar and action.option_strings and action.nargs != 0 else ""
        text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        yield f"| `{_cell(names + value)}` | {_cell(text)} |"


def _signature(value: Callable[..., object]) -> str:
    parameters = [p for p in inspect.signature(value).parameters.values() if p.name != "self"]
    words: list[str] = []
    for parameter in parameters:
        star = "*, " if parameter.kind is parameter.KEYWORD_ONLY and "*, " not in "".join(words) else ""
        plain = parameter.default is None or isinstance(parameter.default, (bool, int, float, str, tuple))
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}" if plain else "=…"
        words.append(f"{star}{parameter.name}{default}")
    return f"({', '.join(words)})"


def _arguments_of(value: Callable[..., object]) -> str:
    made_by_nobody = getattr(value, "_is_protocol", False)
    return _signature(value) if inspect.isfunction(value) or ("__init__" in vars(value) and not made_by_nobody) else ""


def _home(value: Any) -> str:
    """Return the package from which a name is imported: the highest above its module that offers it."""
    if value.__name__ in pytest_amp.__all__:
        return "pytest_amp"
    above = value.__module__.rpartition(".")[0]
    return above if getattr(importlib.import_module(above), value.__name__, None) is value else str(value.__module__)


def _prose(value: object) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", inspect.getdoc(value) or "")


def _sentence(value: object) -> str:
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return _cell(text)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


PAGES = {
    "options.md": options,
    "fixtures.md": fixtures_and_markers,
    "checks.md": checks,
    "python.md": python,
    "commands.md": commands,
}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make(), encoding="utf-8")
