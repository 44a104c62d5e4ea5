"""Faults that a project accepts: key patterns, each with a reason and a report, from a file of its own."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_amp.data_files import toml
from pytest_amp.record import RecordError, content
from pytest_amp.text.quoted import quoted

if TYPE_CHECKING:
    from pytest_amp.run.tally import TestInfo


@dataclass(frozen=True)
class Known:
    """Accepted fault: its ``key``, in which ``*`` matches anything, the reason for accepting it, and its report."""

    key: str
    reason: str
    report: str

    def matches(self, key: str) -> bool:
        """Return whether the fault covers ``key``."""
        return key_pattern(self.key).fullmatch(key) is not None


@functools.cache
def key_pattern(key: str) -> re.Pattern[str]:
    """Return the pattern of ``key``: ``*`` matches anything, and brackets, which ids of tests have, are literal."""
    return re.compile(".*".join(re.escape(part) for part in key.split("*")))


def read_known(path: Path) -> tuple[Known, ...]:
    """Read the faults in the TOML file ``path``. Raises ValueError in one line with the error and its place."""
    rows = tables_of(path, "known", "valid:")
    found = [_known(row, f"{path}: [[known]] number {number}") for number, row in enumerate(rows, start=1)]
    keys = [known.key for known in found]
    if len(set(keys)) != len(keys):
        raise ValueError(f"{path}: the key {next(key for key in keys if keys.count(key) > 1)!r} stands there twice")
    return tuple(found)


def tables_of(path: Path, name: str, expected: str) -> list[dict[str, object]]:
    """Read the tables ``[[name]]`` of the TOML file ``path``, which has nothing else.

    Raises ValueError in one line with the error and its place; ``expected`` is the word before what is valid.
    """
    try:
        data = toml.loads(content(path))
    except RecordError as error:
        raise ValueError(f"{error}; {expected} a TOML file") from None
    except ValueError as error:
        raise ValueError(f"{path}: not TOML: {quoted(error)}; {expected} a TOML file") from None
    rows = data.pop(name, [])
    if data or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        unknown = next(iter(data), name)
        raise ValueError(f"{path}: {unknown!r}; {expected} tables [[{name}]] with key, reason and report")
    return rows


def _known(row: dict[str, object], where: str) -> Known:
    names = ("key", "reason", "report")
    for name in (*names, *row):
        value = row.get(name)
        if name not in names or not isinstance(value, str) or not value.strip():
            raise ValueError(f"{where}: {name} is {value!r}; valid: text in each of {', '.join(names)}")
    if str(row["key"]).count("/") < 3 and "*" not in str(row["key"]):
        raise ValueError(f"{where}: {row['key']!r} is no key; valid: family/device/dtype/name, with * for anything")
    return Known(str(row["key"]), str(row["reason"]), str(row["report"]))


def key_of_test(info: TestInfo, own: str) -> str:
    """Return the key of a test itself, with its parameters: ``rules/cuda/bf16/test_registered::test_rule[mm]``."""
    device, _, dtype = info.target.rpartition("-")
    key = f"{info.family}/{device}/{dtype}/{info.test}" + (f"[{own}]" if own else "")
    return "".join(letter if letter.isprintable() else "?" for letter in key)


def matching(known: Iterable[Known], keys: Iterable[str]) -> list[Known]:
    """Return the faults that cover one of ``keys``."""
    listed = list(keys)
    return [each for each in known if any(each.matches(key) for key in listed)]
