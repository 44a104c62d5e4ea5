"""Table of a history of releases: a column for each release, a group of rows for each back end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_amp.precision import LOW
from pytest_amp.record import (
    ORDER,
    BackEnd,
    Difference,
    Gap,
    History,
    Kind,
    Observation,
    Record,
    Verdict,
    finite,
)
from pytest_amp.report.cells import TITLES, and_more, short, titled, valued
from pytest_amp.report.differences import why
from pytest_amp.report.inline import code, linked, plain
from pytest_amp.text.amounts import counted

#: Cell of a release of which the back end has no record.
NOT_RECORDED = "-"
#: Maximum length of a value in a cell, and maximum number of reasons in a row.
LETTERS, REASONS = 40, 5
#: Remark at the head of the table, and its continuation where text can be bold.
LEGEND_OF_TEXT = (
    "Each release is compared with the previous one that has a record of the back end and the dtype; "
    f"{NOT_RECORDED} stands for a release without a record."
)
LEGEND = f"{LEGEND_OF_TEXT} A cell in bold differs from that release, one with ? is too uncertain to tell."
#: Verdicts of a value that differs, or may differ, without being better or worse.
_OTHER = (Verdict.CHANGED, Verdict.GONE, Verdict.INCONCLUSIVE, Verdict.OBSERVED, Verdict.NEW)
_SPEEDUP = "/speedup"


@dataclass(frozen=True)
class Cell:
    """Text of one release, and whether it differs from the previous release."""

    text: str
    moved: bool = False


@dataclass(frozen=True)
class Row:
    """Row of one back end: ``group`` is its heading, ``name`` an operator, a rule, a workload, a test or a family."""

    group: str
    name: str
    dtypes: tuple[str, ...]
    cells: tuple[Cell, ...]
    reasons: tuple[str, ...] = ()


class _Part:
    """One back end in one dtype: its records, and the differing observations and known reasons of each step, by key."""

    def __init__(self, back_end: BackEnd, dtype: str) -> None:
        self.dtype, self.records = dtype, back_end.records[dtype]
        steps = {index: step for (of_dtype, index), step in back_end.steps.items() if of_dtype == dtype}
        self.moved = {
            index: {observation.key: observation for observation in step.observations} for index, step in steps.items()
        }
        self._known = {index: why(step) for index, step in steps.items()}

    def row(self, group: str, name: str, keys: Iterable[str], cells: Iterable[Cell]) -> Row:
        """Return a row of these keys, with the reasons of all steps, and the number of changes without one."""
        reasons: dict[str, None] = {}
        unknown = 0
        for key in dict.fromkeys(keys):
            for index, moved in self.moved.items():
                reason = self._known[index].get(key)
                if reason is not None:
                    reasons[reason] = None
                elif _is_different(moved.get(key)):
                    unknown += 1
        listed = [*reasons][:REASONS]
        listed += and_more([*reasons], REASONS, "reasons")
        listed += [f"{unknown} without a known reason"] * bool(unknown)
        return Row(group, name, (self.dtype,), tuple(cells), tuple(listed))

    def cells(self, of: Callable[[int, Record], Cell]) -> Iterator[Cell]:
        """Yield the cell of each release; ``of`` is called with its index and record."""
        for index, record in enumerate(self.records):
            yield Cell(NOT_RECORDED) if record is None else of(index, record)

    def values(self, key: str) -> Iterator[Cell]:
        """Yield the value of one key in each release."""

        def value(index: int, record: Record) -> Cell:
            observation, change = record.by_key().get(key), self.moved.get(index, {}).get(key)
            moved = _is_different(change)
            if observation is None:
                return Cell("gone" if moved else "", moved)
            doubtful = change is not None and not moved
            return Cell(short(valued(observation), LETTERS) + " ?" * doubtful, moved)

        return self.cells(value)

    def differing(self) -> Iterator[Observation]:
        """Yield the differing observations of all steps."""
        for step in self.moved.values():
            yield from step.values()


def _is_different(change: Observation | None) -> bool:
    """Return whether a value of a step differs, rather than that its interval is too wide to tell."""
    return change is not None and change.verdict is not Verdict.INCONCLUSIVE


def rows_of(back_end: BackEnd) -> list[Row]:
    """Return the rows of a back end: counts, rules, better and worse operators, speedups, tests, remaining changes."""
    parts = [_Part(back_end, dtype) for dtype in back_end.records]
    rows = [_counts(back_end)]
    for rows_of_part in (_rules, _operators, _speedups, _tests, _remaining):
        rows += _merged(row for part in parts for row in rows_of_part(part))
    return rows


def _merged(rows: Iterable[Row]) -> list[Row]:
    """Return one row for rows that differ only in their dtypes, sorted by name."""
    groups: dict[Row, list[str]] = {}
    for row in rows:
        groups.setdefault(replace(row, dtypes=()), []).extend(row.dtypes)
    merged = [replace(row, dtypes=tuple(dtypes)) for row, dtypes in groups.items()]
    return sorted(merged, key=lambda row: row.name)


def _counts(back_end: BackEnd) -> Row:
    """Return the row of counts: facts of the first record, then the counts of each step."""
    cells = []
    for index in range(len(next(iter(back_end.records.values())))):
        steps = {dtype: step for (dtype, of_step), step in back_end.steps.items() if of_step == index}
        records = [record for row in back_end.records.values() if (record := row[index]) is not None]
        if not records:
            cells.append(Cell(NOT_RECORDED))
        elif not steps:
            cells.append(Cell(counted(sum(len(record.observations) for record in records), "fact")))
        else:
            cells.append(Cell(_counted(steps), moved=any(step.observations for step in steps.values())))
    return Row("facts", "facts", tuple(back_end.records), tuple(cells))


def _counted(steps: Mapping[str, Difference]) -> str:
    parts = [f"{sum(step.same for step in steps.values())} same"]
    for verdict in ORDER:
        count = sum(len(step.of(verdict)) for step in steps.values())
        parts += [titled(count, verdict)] * bool(count)
    incomparable = sum(len(step.incomparable) for step in steps.values())
    parts += [f"{incomparable} of changed tests"] * bool(incomparable)
    not_run = sum(step.not_run for step in steps.values())
    parts += [f"{not_run} not run"] * bool(not_run)
    # The few facts in float32 may be only recorded: that nothing is compared there is no gap.
    gaps = {gap for dtype, step in steps.items() if dtype in LOW for gap in step.gaps}
    parts += ["compared in part"] * bool(gaps - {Gap.NOT_RUN})
    return ", ".join(parts)


def _rules(part: _Part) -> Iterator[Row]:
    """Yield a row for each rule that changed in some release."""
    rules = {observation.key: observation.name for observation in part.differing() if observation.kind is Kind.RULE}
    for key, name in rules.items():
        yield part.row("rules", name, [key], part.values(key))


def _operators(part: _Part) -> Iterator[Row]:
    """Yield a row for each operator or case of which a value became better or worse."""
    groups: dict[str, list[str]] = {}
    for observation in part.differing():
        if _is_graded(observation):
            groups.setdefault(_operator(observation), []).append(observation.key)
    for operator, keys in groups.items():

        def graded(index: int, _: Record, keys: Sequence[str] = tuple(keys)) -> Cell:
            moved = part.moved.get(index, {})
            group = [moved[key] for key in dict.fromkeys(keys) if key in moved and _is_graded(moved[key])]
            return Cell("; ".join(_grades(group)), moved=bool(group))

        yield part.row("better or worse", operator, keys, part.cells(graded))


def _is_graded(observation: Observation) -> bool:
    is_graded = observation.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)
    return is_graded and not _is_test(observation) and not observation.key.endswith(_SPEEDUP)


def _operator(observation: Observation) -> str:
    """Return the family and the name without its last part, which is a tensor of the operator or the case."""
    return f"{observation.family}/{observation.name.rpartition('/')[0] or observation.name}"


def _grades(observations: Sequence[Observation]) -> Iterator[str]:
    """Yield a phrase for each direction: ``3 worse, 1.3 to 1.8 times``."""
    for verdict in (Verdict.REGRESSED, Verdict.IMPROVED):
        group = [observation for observation in observations if observation.verdict is verdict]
        if not group:
            continue
        factors = sorted(factor for observation in group if (factor := _factor(observation)) is not None)
        ends = dict.fromkeys(map(_rounded, (*factors[:1], *factors[-1:])))
        yield titled(len(group), verdict) + (f", {' to '.join(ends)} times" if ends else "")


def _rounded(factor: float) -> str:
    """Format with two digits, and three near 1: ``1.04``."""
    digits = 3 if abs(factor - 1.0) < 0.1 else 2
    return f"{float(f'{factor:.{digits}g}'):g}"


def _factor(observation: Observation) -> float | None:
    before, now = observation.baseline, observation.value
    if isinstance(before, bool) or isinstance(now, bool):
        return None
    if not isinstance(before, (int, float)) or not isinstance(now, (int, float)) or not before:
        return None
    return now / before


def _speedups(part: _Part) -> Iterator[Row]:
    """Yield a row for each speedup, whether it moved or not."""
    recorded = [observation for record in part.records if record is not None for observation in record.observations]
    keys = {observation.key: observation.name for observation in recorded if observation.key.endswith(_SPEEDUP)}
    for key, name in keys.items():
        yield part.row("speedups", name.removesuffix(_SPEEDUP), [key], part.values(key))


def _tests(part: _Part) -> Iterator[Row]:
    """Yield a row for each test that begins or ceases to fail in some release."""
    tests = {observation.key: observation for observation in part.differing() if _is_test(observation)}
    for key, test in tests.items():

        def outcome(index: int, record: Record, key: str = key) -> Cell:
            failure = next((failure for failure in record.failures if failure.key == key), None)
            if failure is not None:
                text = TITLES[Verdict.FIXED] if failure.is_fixed else "fails"
            else:
                text = "passes" if key in part.moved.get(index, {}) else ""
            return Cell(text, moved=key in part.moved.get(index, {}))

        yield part.row("tests", f"{test.family}/{test.name}", [key], part.cells(outcome))


def _is_test(observation: Observation) -> bool:
    """Return whether this is a test that fails, or that failed and passes."""
    if observation.verdict in (Verdict.FAILED, Verdict.FIXED):
        return True
    return observation.verdict is Verdict.IMPROVED and observation.kind is Kind.STATE


def _remaining(part: _Part) -> Iterator[Row]:
    """Yield a row of counts for each family with changes that have no row of their own."""
    families: dict[str, list[str]] = {}
    for observation in part.differing():
        if _is_other(observation):
            families.setdefault(observation.family, []).append(observation.key)
    for family, keys in families.items():

        def counted(index: int, _: Record, family: str = family) -> Cell:
            step = part.moved.get(index, {}).values()
            group = [observation for observation in step if observation.family == family and _is_other(observation)]
            counts = {verdict: sum(one.verdict is verdict for one in group) for verdict in _OTHER}
            text = ", ".join(titled(count, verdict) for verdict, count in counts.items() if count)
            return Cell(text, moved=any(map(_is_different, group)))

        yield part.row("other changes", family, keys, part.cells(counted))


def _is_other(observation: Observation) -> bool:
    if observation.kind is Kind.RULE or observation.key.endswith(_SPEEDUP):
        return False
    return observation.verdict in _OTHER


def as_markdown(history: History) -> str:
    """Format as one table of Markdown; the last column has the known reasons."""
    lines = [f"### torch {history.releases[0]} → {history.releases[-1]}", "", LEGEND, ""]
    lines.append(f"| | dtype | {' | '.join(history.releases)} | because |")
    lines.append("|---" * (len(history.releases) + 3) + "|")
    for back_end in history.back_ends:
        lines.append(f"| **{plain(back_end.name)}** |" + " |" * (len(history.releases) + 2))
        group = ""
        for row in rows_of(back_end):
            if row.group not in (group, "facts"):
                lines.append(f"| *{row.group}* |" + " |" * (len(history.releases) + 2))
            group = row.group
            name = row.name if row.group == "facts" else code(row.name)
            cells = [f"**{plain(cell.text)}**" if cell.moved and cell.text else plain(cell.text) for cell in row.cells]
            because = "; ".join(map(linked, row.reasons))
            lines.append(f"| {name} | {', '.join(row.dtypes)} | {' | '.join(cells)} | {because} |")
    return "\n".join([*lines, ""])


def as_json(history: History) -> str:
    """Format as JSON: the releases, and the rows of each back end."""
    back_ends = [
        {
            "name": back_end.name,
            "rows": [
                {
                    "group": row.group,
                    "name": row.name,
                    "dtypes": [*row.dtypes],
                    "cells": [{"text": cell.text, "moved": cell.moved} for cell in row.cells],
                    "reasons": [*row.reasons],
                }
                for row in rows_of(back_end)
            ],
        }
        for back_end in history.back_ends
    ]
    data = finite({"releases": [*history.releases], "back_ends": back_ends})  # type: ignore[dict-item]
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
