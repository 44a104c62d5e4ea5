"""Calibrated floors by card, kind of float32, dtype, work and timed quantity, from a data file.

``pytest-amp calibrate`` writes the file; it is not edited manually. Pure Python, no torch.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path

from pytest_amp.record import RecordError, content, write_whole
from pytest_amp.text.amounts import counted

SCHEMA = 1
#: Card (as its driver calls it), kind of float32, dtype, work, and the timed quantity.
Key = tuple[str, str, str, str, str]
#: Floor as a share of the calibrated median: step times of healthy machines vary more than device times.
SHARES = {"device": 0.95, "step": 0.80}


class FloorsError(ValueError):
    """File of floors that cannot be read, or a change that is not allowed; one line that names it."""


@dataclass(frozen=True)
class Row:
    """Floor of one piece of work on one card, with its source.

    ``floor`` is the required speedup; ``median`` the median over ``sessions`` fresh processes, ``spread`` their
    standard deviation over their mean; ``reason`` why the floor is lower than before, if it is.
    """

    gpu: str
    over: str
    dtype: str
    work: str
    kind: str
    floor: float
    median: float
    spread: float
    sessions: int
    torch: str
    cuda: str
    cudnn: str
    driver: str
    date: str
    reason: str | None = None

    @property
    def key(self) -> Key:
        """Return the key of the floor: card, kind of float32, dtype, work and timed quantity."""
        return self.gpu, self.over, self.dtype, self.work, self.kind


@functools.cache
def shipped() -> tuple[Row, ...]:
    """Return the floors that come with this package."""
    text = resources.files(__package__).joinpath("floors.json").read_text(encoding="utf-8")
    return loads(text, "floors.json")


def calibrated(key: Key, users_rows: Iterable[Row] = ()) -> Row | None:
    """Return the row for a key, the user's ``users_rows`` before the shipped ones; None if it was not calibrated."""
    return next((row for row in (*users_rows, *shipped()) if row.key == key), None)


def loads(text: str, name: str) -> tuple[Row, ...]:
    """Parse the rows in ``text``. Raises FloorsError, naming the file and the error."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise FloorsError(f"{name}: not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("floors"), list):
        raise FloorsError(f"{name}: no file of floors with schema {SCHEMA}")
    return tuple(_row(item, name) for item in data["floors"])


def _row(item: object, name: str) -> Row:
    types = {field.name: field.type for field in fields(Row)}
    if not isinstance(item, dict) or not item.keys() <= types.keys() or not types.keys() - {"reason"} <= item.keys():
        raise FloorsError(f"{name}: a floor has {', '.join(types)}; got {str(item)[:80]}")
    for key, value in item.items():
        expected = (int, float) if types[key] == "float" else int if types[key] == "int" else (str, type(None))
        if not isinstance(value, expected) or isinstance(value, bool):
            raise FloorsError(f"{name}: {key} is {value!r}")
    row = Row(**item)
    if not 0 < row.floor <= row.median < math.inf or row.sessions < 1 or row.kind not in SHARES:
        raise FloorsError(f"{name}: {' '.join(row.key)}: a floor of {row.floor} under a median of {row.median}")
    return row


def dumps(rows: Iterable[Row]) -> str:
    """Return the file's text: one row a line, sorted, so that a diff shows a change."""
    lines = ",\n".join(
        "  " + json.dumps({key: value for key, value in asdict(row).items() if value is not None})
        for row in sorted(rows, key=lambda row: row.key)
    )
    return f'{{\n "schema": {SCHEMA},\n "floors": [\n{lines}\n ]\n}}\n'


def merged(old: Sequence[Row], new: Sequence[Row], reason: str | None) -> tuple[Row, ...]:
    """Return ``old`` with its rows replaced by those of ``new`` for the same work.

    A floor may rise; a lower one needs a ``reason``, which stays in the file. Raises FloorsError without one.
    """
    before = {row.key: row for row in old}
    lowered = [row for row in new if row.key in before and row.floor < before[row.key].floor]
    if lowered and not (reason and reason.strip()):
        first = lowered[0]
        raise FloorsError(
            f"{counted(len(lowered), 'floor')} would fall, such as {' '.join(first.key)} from "
            f"{before[first.key].floor:g} to {first.floor:g}; expected a reason (--reason), which is kept in the file"
        )
    fallen = {row.key for row in lowered}
    updated = [Row(**{**asdict(row), "reason": reason}) if row.key in fallen else row for row in new]
    return tuple((before | {row.key: row for row in updated}).values())


def read(path: Path) -> tuple[Row, ...]:
    """Read the rows of a file. Raises FloorsError."""
    try:
        return loads(content(path), str(path))
    except RecordError as error:
        raise FloorsError(str(error)) from None


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write the whole file or nothing. Raises FloorsError."""
    try:
        write_whole(dumps(rows), path, replace=True)
    except RecordError as error:
        raise FloorsError(str(error)) from None
