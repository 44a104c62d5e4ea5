"""Trend of a history of records: the observations that changed, and the step in which each did."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_amp.record.difference import ORDER, Difference, difference
from pytest_amp.record.file import Record
from pytest_amp.record.observation import Observation, Value, Verdict


@dataclass(frozen=True)
class Moved:
    """Key that moved in some step: its value in each record (None if missing), and the verdict of each step.

    ``verdicts[n]`` is the verdict from record ``n`` to record ``n + 1``; None if nothing changed.
    """

    key: str
    values: tuple[Value, ...]
    verdicts: tuple[Verdict | None, ...]

    @property
    def worst(self) -> Verdict:
        """Return the worst of the verdicts."""
        return min((verdict for verdict in self.verdicts if verdict is not None), key=ORDER.index)


@dataclass(frozen=True)
class Trend:
    """Records in the given order, oldest first.

    ``steps`` compares each record with the previous one, ``whole`` the last one with the first: many small steps may
    together make a change that no single one shows. ``moved`` has each key that any of these found, the worst first.
    """

    records: tuple[Record, ...]
    steps: tuple[Difference, ...]
    whole: Difference
    moved: tuple[Moved, ...]


def trend(records: Sequence[Record]) -> Trend:
    """Return the trend of at least two records. Raises ValueError for fewer."""
    if len(records) < 2:
        raise ValueError(f"no history of records ({len(records)}); expected two or more")
    steps = tuple(difference(old, new) for old, new in itertools.pairwise(records))
    whole = difference(records[0], records[-1])
    known = [_known(record) for record in records]
    verdicts_of_steps = [{observation.key: observation.verdict for observation in step.observations} for step in steps]
    # A value that changes only over several steps has the verdict of ``whole``, in the last step.
    drifted = {observation.key: observation.verdict for observation in whole.observations}
    moved = []
    for key in dict.fromkeys(key for verdicts in (*verdicts_of_steps, drifted) for key in verdicts):
        verdicts = tuple(step.get(key) for step in verdicts_of_steps)
        if not any(verdicts):
            verdicts = (*verdicts[:-1], drifted[key])
        moved.append(Moved(key, tuple(_value(values.get(key)) for values in known), verdicts))
    moved.sort(key=lambda row: (ORDER.index(row.worst), row.key))
    return Trend(tuple(records), steps, whole, tuple(moved))


def _known(record: Record) -> dict[str, Observation | str]:
    failed: dict[str, Observation | str] = {failure.key: f"fails: {failure.why}" for failure in record.failures}
    return {**failed, **record.by_key()}


def _value(known: Observation | str | None) -> Value:
    return known.value if isinstance(known, Observation) else known
