"""Table format of observations in a file: observations with the same head form one table, with a row for each.

A row contains the whole key, so that a text search finds it and a diff shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from pytest_amp.record.observation import EXACT, Better, Kind, Observation, Value, Verdict, finite

#: Head of a table, in this order; missing values are left out.
HEAD = ("test", "kind", "unit", "better", "margin")
#: Columns of a row, in this order; null for a missing value, and missing values at the end are left out.
COLUMNS = ("key", "value", "allowed", "over_seeds", "interval", "baseline", "verdict")
#: Significant digits of inexact values: errors and ratios are not known more accurately, other values are a user's.
_DIGITS = {Kind.ERROR: 4, Kind.RATIO: 4}
_MOST_DIGITS = 8
#: A row always has a key and a value.
_LEAST = 2


def lines(observations: Iterable[Observation]) -> Iterator[str]:
    """Yield the tables as lines of a JSON list, sorted by family and head, and their rows by key."""
    tables: dict[tuple[str, str], list[Observation]] = {}
    for observation in sorted(observations, key=lambda row: row.key):
        tables.setdefault((observation.family, _text(_head(observation))), []).append(observation)
    for number, ((_, head), members) in enumerate(sorted(tables.items()), 1):
        yield f'  {head[:-1]}, "rows": ['
        rows = [_text(_row(observation)) for observation in members]
        yield from (f"   {row}," for row in rows[:-1])
        yield f"   {rows[-1]}"
        yield "  ]}" if number == len(tables) else "  ]},"


def _head(observation: Observation) -> dict[str, Value]:
    data = observation.to_json()
    return {name: data[name] for name in HEAD if name in data}


def _row(observation: Observation) -> list[Value]:
    """Return the row without a passing verdict, and with inexact values rounded to their known digits."""
    data = observation.to_json()
    if observation.verdict is Verdict.PASS:
        del data["verdict"]
    row = [data.get(name) for name in COLUMNS]
    while len(row) > _LEAST and row[-1] is None:
        row.pop()
    inexact = observation.kind not in EXACT and observation.better is not Better.SAME
    digits = _DIGITS.get(observation.kind, _MOST_DIGITS)
    return [row[0], *(_rounded(value, digits) if inexact else value for value in row[1:])]


def _rounded(value: Value, digits: int) -> Value:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _text(value: Value) -> str:
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False)


def items(tables: Iterable[object]) -> Iterator[dict[str, object]]:
    """Yield the observations of such tables as plain JSON, the argument of ``Observation.from_json``.

    Raises ValueError in one line.
    """
    for table in tables:
        rows = table.get("rows") if isinstance(table, dict) else None
        if not isinstance(table, dict) or not isinstance(rows, list):
            raise ValueError(f"a table without rows: {str(table)[:80]!r}")
        head = {name: table[name] for name in HEAD if name in table}
        for row in rows:
            if not isinstance(row, list) or not _LEAST <= len(row) <= len(COLUMNS):
                raise ValueError(f"a row is {str(row)[:80]!r}; expected a list of {', '.join(COLUMNS)}")
            key, value, *rest = row
            named = zip(COLUMNS[_LEAST:], rest, strict=False)
            yield {
                "key": key,
                "value": value,
                **head,
                **{name: field_value for name, field_value in named if field_value is not None},
            }
