"""Infinities of a program in float32: 1 / 0 is infinite in every dtype."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from pytest_amp.lint.place import Place
from pytest_amp.lint.program import Call

_Key: TypeAlias = tuple[str, str, str | None, str]


class Infinities:
    """Numbers of infinities that the calls of a forward pass give in float32.

    A call of another run has the same place, module and operator, and is as many calls of them after the first.
    """

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        """Take the calls of a forward pass without a region."""
        self._counts: defaultdict[_Key, list[int]] = defaultdict(list)
        self._seen: Counter[_Key] = Counter()
        for call in calls:
            self._counts[_key(call.place, call.module, call.operator)].append(call.values.infinite)

    def of_next(self, place: Place, module: str | None, operator: str) -> int:
        """Return the number of infinities in float32 of the next call of an operator at a place."""
        key = _key(place, module, operator)
        counts, index = self._counts.get(key, ()), self._seen[key]
        self._seen[key] += 1
        return counts[index] if index < len(counts) else 0


def _key(place: Place, module: str | None, operator: str) -> _Key:
    return place.line, place.library, module, operator
