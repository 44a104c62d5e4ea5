"""Format of a history of records: text, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pytest_amp.record import ORDER, Trend, Value, Verdict, finite
from pytest_amp.report.cells import HISTORY_ROWS, TITLES, and_more, short
from pytest_amp.report.differences import as_data, counts, remarks, run
from pytest_amp.report.inline import code, plain
from pytest_amp.text.quoted import printable

#: Maximum length of a value in a table of many columns.
LETTERS = 40


def steps(trend: Trend) -> list[tuple[str, str]]:
    """Return a line for each step, and for the whole history, with both runs and the counts."""
    rows = [(f"{run(step.old.provenance)} → {run(step.new.provenance)}", counts(step)) for step in trend.steps]
    first, last = trend.records[0].provenance, trend.records[-1].provenance
    return [*rows, (f"altogether, {run(first)} → {run(last)}", counts(trend.whole))]


def as_text(trend: Trend) -> str:
    """Format for a terminal: the records, the counts of each step, and each moved key with its values."""
    lines = [f"{number}  {run(record.provenance)}" for number, record in enumerate(trend.records, start=1)]
    lines += [f"     {note}" for note in remarks(trend.whole)]
    for number, step in enumerate(trend.steps, start=1):
        lines.append(f"{number} -> {number + 1}: {counts(step)}")
    lines.append(f"1 -> {len(trend.records)}: {counts(trend.whole)}")
    for verdict in ORDER:
        moved = [row for row in trend.moved if row.worst is verdict]
        if moved:
            lines += ["", f"{TITLES[verdict]} ({len(moved)})"]
            lines += [f"  {row.key}: {series(row.values, row.verdicts)}" for row in moved[:HISTORY_ROWS]]
            lines += [f"  {line}" for line in and_more(moved, HISTORY_ROWS)]
    return "\n".join([*map(printable, lines), ""])


def as_markdown(trend: Trend) -> str:
    """Format for a job page: a row a key, a column a record; cells in which a value moved are bold."""
    heads = [plain(run(record.provenance)) for record in trend.records]
    lines = [f"### {heads[0]} → {heads[-1]}", ""]
    lines += [f"- {plain(name)}: {plain(text)}" for name, text in steps(trend)]
    lines += [f"- {plain(note)}" for note in remarks(trend.whole)]
    for verdict in ORDER:
        moved = [row for row in trend.moved if row.worst is verdict]
        if not moved:
            continue
        lines += ["", f"**{TITLES[verdict]} ({len(moved)})**", "", f"| key | {' | '.join(heads)} |"]
        lines.append("|---" * (len(heads) + 1) + "|")
        for row in moved:
            marks = (None, *row.verdicts)
            cells = [
                f"**{plain(short(value, LETTERS))}**" if mark is not None else plain(short(value, LETTERS))
                for value, mark in zip(row.values, marks, strict=True)
            ]
            lines.append(f"| {code(row.key)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def as_json(trend: Trend) -> str:
    """Format as JSON: each step and the whole as ``diff`` of two records has them, and each moved key."""
    data = {
        "records": [finite(dict(record.provenance)) for record in trend.records],
        "steps": [as_data(step) for step in trend.steps],
        "whole": as_data(trend.whole),
        "moved": [
            {
                "key": row.key,
                "values": finite([*row.values]),
                "verdicts": [None if verdict is None else verdict.value for verdict in row.verdicts],
            }
            for row in trend.moved
        ],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def series(values: Sequence[Value], verdicts: Sequence[Verdict | None]) -> str:
    """Return the values, each with its verdict: ``0.01, 0.03 (regressed), 0.03``."""
    marks = (None, *verdicts)
    return ", ".join(
        ("-" if value is None else short(value, LETTERS)) + (f" ({mark.value})" if mark is not None else "")
        for value, mark in zip(values, marks, strict=True)
    )
