"""Edits of ``pytest_amp/rules/spec.toml``, row by row, so that the rest of the file stays unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_amp.data_files import toml

_ROW = re.compile(r"^(?P<indent>\s*)(?P<row>\{ name = \"(?P<name>[^\"]+)\".*\}),?\s*$")
_LAST = re.compile(r'^last = "[0-9.]+"$', re.MULTILINE)


@dataclass
class RuleChanges:
    """Changes of the rules in a release: by device type, overload (``softmax.int``) and rule.

    ``changed`` has the rule of the release; ``gone`` overloads without a kernel in it.
    """

    new: dict[str, dict[str, str]] = field(default_factory=dict)
    changed: dict[str, dict[str, str]] = field(default_factory=dict)
    gone: dict[str, list[str]] = field(default_factory=dict)


def edited(text: str, changes: RuleChanges, *, before: str, release: str, version: str) -> str:
    """Return the spec's text for one more ``release``, the one after ``before``, as read from torch ``version``.

    A removed rule ends with ``before``, a changed one is followed by another, and new overloads have a group of their
    own. Raises ValueError naming an overload that lacks its row.
    """
    source = f"read from the dispatcher of {version}"
    text = _LAST.sub(f'last = "{release}"', text, count=1)
    lines, observed = [], set()
    for line in text.splitlines():
        result = _ROW.match(line)
        if result is None:
            lines.append(line)
            continue
        row = toml.loads(f"row = {result['row']}")["row"]
        name = result["name"]
        edit = {
            device: _later(row[device], rules[name], before=before, release=release, source=source)
            for device, rules in _rules(changes).items()
            if name in rules and device in row
        }
        fresh = {
            device: {"rule": rules[name], "since": release, "source": source}
            for device, rules in changes.new.items()
            if name in rules and device not in row
        }
        observed |= {(device, name) for device in (*edit, *fresh)}
        whole = {**row, **edit, **fresh}
        lines.append(f"{result['indent']}{written(whole)}," if edit or fresh else line)
    missing = [name for device, rules in _rules(changes).items() for name in rules if (device, name) not in observed]
    if missing:
        raise ValueError(f"the spec has no row for {', '.join(sorted(set(missing)))}")
    return "\n".join([*lines, *_group(changes, observed, release, source)]) + "\n"


def _rules(changes: RuleChanges) -> dict[str, dict[str, str | None]]:
    """Return the changes of known overloads by device type: the new rule, or None for none."""
    devices = dict.fromkeys((*changes.changed, *changes.gone))
    return {
        device: {**changes.changed.get(device, {}), **dict.fromkeys(changes.gone.get(device, ()))} for device in devices
    }


def _later(value: Any, rule: str | None, *, before: str, release: str, source: str) -> Any:
    """Return a cell of a row whose last rule ends with ``before``, and after which comes ``rule``."""
    turns = value if isinstance(value, list) else [value]
    *earlier, last = [turn if isinstance(turn, dict) else {"rule": turn} for turn in turns]
    ended = [*earlier, {**last, "until": before}]
    if rule is not None:
        ended.append({"rule": rule, "since": release, "source": source})
    return ended if len(ended) > 1 else ended[0]


def _group(changes: RuleChanges, observed: set[tuple[str, str]], release: str, source: str) -> list[str]:
    """Return the lines of a group of overloads that have no row yet."""
    names = {name for device, rules in changes.new.items() for name in rules if (device, name) not in observed}
    if not names:
        return []
    rows = []
    for name in sorted(names):
        cells = {device: rules[name] for device, rules in changes.new.items() if name in rules}
        rows.append(f"  {written({'name': name, **cells})},")
    head = ["", "[[group]]", f'title = "Since torch {release}"', f'since = "{release}"', f'source = "{source}"']
    return [*head, "operators = [", *rows, "]"]


def written(value: Any) -> str:
    """Return a value of TOML in one line, as the rows of the spec have it."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {written(entry)}' for name, entry in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
