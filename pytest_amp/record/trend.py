"""What a history of records shows: what moved, and in which step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_amp.record.difference import ORDER, Difference, difference
from pytest_amp.record.file import Record
from pytest_amp.record.observation import Observation, Value, Verdict


@dataclass(frozen=True)
class Moved:
    """A key that moved in some step: its value in each record (None where it has none), and what each step did.

    ``verdicts[n]`` is what became of it from record ``n`` to record ``n + 1``; None where nothing did.
    """

    key: str
    values: tuple[Value, ...]
    verdicts: tuple[Verdict | None, ...]

    @property
    def worst(self) -> Verdict:
        """The worst of its verdicts."""
        return min((verdict for verdict in self.verdicts if verdict is not None), key=ORDER.index)


@dataclass(frozen=True)
class Trend:
    """Records in the order in which they were given, oldest first.

    ``steps`` compares each with the one before it, ``whole`` the last one with the first: many small steps
    may add up to what no single one shows. ``moved`` has each key that any of these found, the worst first.
    """

    records: tuple[Record, ...]
    steps: tuple[Difference, ...]
    whole: Difference
    moved: tuple[Moved, ...]


def trend(records: Sequence[Record]) -> Trend:
    """The history of at least two records. Raises ValueError for fewer."""
    if len(records) < 2:
        raise ValueError(f"{len(records)} records are no history; valid: two or more")
    steps = tuple(difference(old, new) for old, new in itertools.pairwise(records))
    whole = difference(records[0], records[-1])
    known = [_known(record) for record in records]
    found = [{each.key: each.verdict for each in step.observations} for step in steps]
    # What only drifted has the verdict of the whole, in the last step.
    drifted = {each.key: each.verdict for each in whole.observations}
    moved = []
    for key in dict.fromkeys(key for verdicts in (*found, drifted) for key in verdicts):
        verdicts = tuple(step.get(key) for step in found)
        if not any(verdicts):
            verdicts = (*verdicts[:-1], drifted[key])
        moved.append(Moved(key, tuple(_value(values.get(key)) for values in known), verdicts))
    moved.sort(key=lambda each: (ORDER.index(each.worst), each.key))
    return Trend(tuple(records), steps, whole, tuple(moved))


def _known(record: Record) -> dict[str, Observation | str]:
    failed: dict[str, Observation | str] = {each.key: f"fails: {each.why}" for each in record.failures}
    return {**failed, **record.by_key()}


def _value(known: Observation | str | None) -> Value:
    return known.value if isinstance(known, Observation) else known
