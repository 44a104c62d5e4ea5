"""Observations of files that an earlier schema wrote, as this version would have written them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytest_amp.record.observation import Better, Kind, Observation

#: In schema 1 a speedup and the ends of its interval were three observations.
_SPEEDUP, _LOW, _HIGH = "/speedup", "/speedup-low", "/speedup-high"


def upgraded(observations: Iterable[Observation], schema: int) -> tuple[Observation, ...]:
    """The observations of a file with this ``schema`` in today's form."""
    found = tuple(observations)
    return found if schema >= 2 else _with_intervals(found)


def _with_intervals(observations: tuple[Observation, ...]) -> tuple[Observation, ...]:
    """Speedups with their ends as one interval."""
    by_key = {observation.key: observation for observation in observations}
    speedups = {}
    taken = set()
    for key, observation in by_key.items():
        ends = [by_key.get(key.removesuffix(_SPEEDUP) + end) for end in (_LOW, _HIGH)]
        values = [end.value for end in ends if end is not None and isinstance(end.value, (int, float))]
        if not key.endswith(_SPEEDUP) or observation.kind is not Kind.RATIO or len(values) < 2:
            continue
        low, high = (float(value) for value in values)
        if low <= high:
            speedups[key] = replace(observation, interval=(low, high), better=Better.HIGHER)
            taken |= {end.key for end in ends if end is not None}
    return tuple(speedups.get(each.key, each) for each in observations if each.key not in taken)
