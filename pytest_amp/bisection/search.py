"""Binary search over releases; releases that could not be tried are left out."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Standing(enum.Enum):
    """Outcome of one release compared with the oldest one."""

    SAME = "same"
    DIFFERENT = "different"
    BROKEN = "could not be tried"


@dataclass(frozen=True)
class Trial:
    """Result of trying one release; ``facts`` are lines for the reader."""

    release: str
    outcome: Standing
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Result of a search: ``first`` is the first release that differs, after ``last_same``; None if none differs.

    ``untried`` are releases between the two that could not be tried: one of them may have introduced the change.
    """

    last_same: str
    first: Trial | None
    untried: tuple[Trial, ...] = ()


def search(releases: Sequence[str], attempt: Callable[[str], Trial]) -> Answer:
    """Find the first release that differs from the oldest of ``releases``, if the change came once and stayed.

    Raises ValueError if the newest release cannot be tried, since the search asks about that one.
    """
    oldest, newest = releases[0], releases[-1]
    last = attempt(newest)
    if last.outcome is Standing.BROKEN:
        raise ValueError(f"torch {newest} could not be tried: {'; '.join(last.facts)}")
    if last.outcome is Standing.SAME:
        return Answer(newest, None)
    trials: dict[int, Trial] = {}
    low, high, first = 0, len(releases) - 1, last
    while True:
        inside = [number for number in range(low + 1, high) if number not in trials]
        if not inside:
            untried = tuple(trials[number] for number in range(low + 1, high))
            return Answer(releases[low] if low else oldest, first, untried)
        middle = min(inside, key=lambda number: abs(2 * number - low - high))
        trial = trials[middle] = attempt(releases[middle])
        if trial.outcome is Standing.SAME:
            low = middle
        elif trial.outcome is Standing.DIFFERENT:
            high, first = middle, trial


def most_trials(count: int) -> int:
    """Return the maximum number of trials among ``count`` releases, including oldest and newest, if none is broken."""
    return min(count, 2 + max(count - 2, 0).bit_length())
