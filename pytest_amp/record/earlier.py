"""Conversion of observations in files of an earlier schema to the current form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_amp.record import table
from pytest_amp.record.observation import Better, Kind, Observation

#: Columns of schema 3: errors are of one seed.
_COLUMNS = ("key", "value", "allowed", "interval", "baseline", "verdict")
#: In schema 1 a speedup and the ends of its interval were three observations.
_SPEEDUP, _LOW, _HIGH = "/speedup", "/speedup-low", "/speedup-high"
#: Until schema 2 the share of elements that equal the model was one observation for each call in an operator.
_SIGNATURE, _CALLS = "/signature", ("/forward.signature", "/backward.signature")


def items(observations: Iterable[object], schema: int) -> Iterator[object]:
    """Return the observations of a file with this ``schema``, as plain JSON. Raises ValueError in one line."""
    if schema < 3:
        return iter(observations)
    return table.items(observations, _COLUMNS if schema < 4 else table.COLUMNS)


def upgraded(observations: Iterable[Observation], schema: int) -> tuple[Observation, ...]:
    """Convert the observations of a file with this ``schema`` to the current form."""
    result = tuple(observations)
    if schema < 2:
        result = _with_intervals(result)
    return result if schema >= 3 else _with_one_signature(result)


def _with_one_signature(observations: tuple[Observation, ...]) -> tuple[Observation, ...]:
    """Replace the shares of an operator's calls by their minimum."""
    least: dict[str, Observation] = {}
    for observation in (candidate for candidate in observations if _is_share_of_a_call(candidate)):
        key = observation.key.rsplit("/", 2)[0] + _SIGNATURE
        if key not in least or _share(observation) < _share(least[key]):
            least[key] = replace(observation, key=key)
    return (*(observation for observation in observations if not _is_share_of_a_call(observation)), *least.values())


def _is_share_of_a_call(observation: Observation) -> bool:
    """Return whether it is a number with a name such as ``add/4096/mul.Tensor/forward.signature``."""
    named = observation.key.endswith(_CALLS) and observation.name.count("/") >= 2
    return named and observation.kind is Kind.RATIO and isinstance(observation.value, (int, float))


def _share(observation: Observation) -> int | float:
    assert isinstance(observation.value, (int, float))
    return observation.value


def _with_intervals(observations: tuple[Observation, ...]) -> tuple[Observation, ...]:
    """Merge each speedup with the ends of its interval."""
    by_key = {observation.key: observation for observation in observations}
    speedups = {}
    merged = set()
    for key, observation in by_key.items():
        ends = [by_key.get(key.removesuffix(_SPEEDUP) + end) for end in (_LOW, _HIGH)]
        values = [end.value for end in ends if end is not None and isinstance(end.value, (int, float))]
        if not key.endswith(_SPEEDUP) or observation.kind is not Kind.RATIO or len(values) < 2:
            continue
        low, high = (float(value) for value in values)
        if low <= high:
            speedups[key] = replace(observation, interval=(low, high), better=Better.HIGHER)
            merged |= {end.key for end in ends if end is not None}
    return tuple(
        speedups.get(observation.key, observation) for observation in observations if observation.key not in merged
    )
