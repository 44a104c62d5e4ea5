"""Observations of earlier schemas in today's form, and an interval as one observation."""

from __future__ import annotations

import pytest

from pytest_amp.record import Better, Kind, Observation
from pytest_amp.record.earlier import upgraded

NAME = "speed/cuda/bf16/mlp/over-fp32/step/speedup"


def three(low: float, median: float, high: float) -> list[Observation]:
    """Return a speedup in the form of schema 1."""
    named = ((NAME, median), (f"{NAME}-low", low), (f"{NAME}-high", high))
    return [Observation(key, Kind.RATIO, value, "times") for key, value in named]


@pytest.mark.parametrize("ends", [(1.5, 1.7), (1.6, 1.6)])
def test_speedup_and_its_ends_become_one_observation(ends: tuple[float, float]) -> None:
    (actual,) = upgraded(three(ends[0], 1.6, ends[1]), 1)
    assert (actual.key, actual.value, actual.interval, actual.better) == (NAME, 1.6, ends, Better.HIGHER)


def test_invalid_interval_ends_remain_separate_observations() -> None:
    """Include runs without a result: NaN for an end, or the larger one first."""
    for low, high in ((1.7, 1.5), (float("nan"), 1.7)):
        actual = upgraded(three(low, 1.6, high), 1)
        assert [observation.key for observation in actual] == [NAME, f"{NAME}-low", f"{NAME}-high"]
        assert {observation.interval for observation in actual} == {None}
    assert [observation.key for observation in upgraded(three(1.5, 1.6, 1.7)[:2], 1)] == [NAME, f"{NAME}-low"]


def test_operator_has_the_smallest_share_of_its_calls() -> None:
    shares = (
        ("add/64/mul/forward", 0.9),
        ("add/64/mul/backward", 0.8),
        ("add/64/add/forward", 1.0),
        ("add/128/add/forward", 0.7),
    )
    observations = [Observation(f"gradients/cpu/bf16/{call}.signature", Kind.RATIO, share) for call, share in shares]
    actual = {observation.name: observation.value for observation in upgraded(observations, 2)}
    assert actual == {"add/64/signature": 0.8, "add/128/signature": 0.7}
    assert upgraded(observations, 3) == tuple(observations)


def test_interval_of_one_point_is_read() -> None:
    written = Observation(NAME, Kind.RATIO, 1.6, interval=(1.6, 1.6)).to_json()
    assert Observation.from_json(written).interval == (1.6, 1.6)
    with pytest.raises(ValueError, match="two numbers, the smaller one first"):
        Observation.from_json({**written, "interval": [1.7, 1.6]})
