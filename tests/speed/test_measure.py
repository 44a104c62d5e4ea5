"""From arms to a verdict: a failure is measured again, on new tensors; a doubtful one is never red."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pytest_amp.speed.measure import Measured, measure
from pytest_amp.speed.paired import Arms, Plan
from pytest_amp.speed.verdict import Outcome, Rule
from tests.speed.simulated import SimulatedClock, taking


def measured(*arms: Arms, ceiling: float | None = None) -> tuple[Measured, int]:
    left = list(arms)
    make: Callable[[], Arms] = lambda: left.pop(0)  # noqa: E731
    actual = measure(make, clock=SimulatedClock(), rule=Rule(1.5), plan=Plan(warm_up=0), ceiling=ceiling)
    return actual, len(arms) - len(left)


def test_pass_needs_one_measurement() -> None:
    actual, result = measured(taking(4.0, 2.0), taking(4.0, 2.0))
    assert (actual.verdict.outcome, result) == (Outcome.PASS, 1)
    assert actual.verdict.interval.median == pytest.approx(2.0)
    assert actual.reference == (4.0,) * 24
    assert actual.candidate == (2.0,) * 24


def test_slow_candidate_is_measured_twice_and_fails() -> None:
    actual, result = measured(taking(4.0, 4.0), taking(4.0, 5.0))
    assert (actual.verdict.outcome, result) == (Outcome.FAIL, 2)
    assert actual.verdict.unconfirmed is not None
    assert actual.verdict.unconfirmed.median == pytest.approx(1.0)
    assert actual.verdict.interval.median == pytest.approx(0.8)


def test_unconfirmed_failure_is_inconclusive() -> None:
    actual, result = measured(taking(4.0, 4.0), taking(4.0, 2.0))
    assert (actual.verdict.outcome, result) == (Outcome.INCONCLUSIVE, 2)
    assert actual.verdict.reasons == ("a first measurement failed at 1 [1, 1], a second did not",)


def test_busy_machine_is_inconclusive() -> None:
    busy = [2.0] * 30 + [4.0] * 30
    for candidate in (busy, [4 * seconds for seconds in busy]):
        actual, result = measured(taking(8.0, candidate))
        assert (actual.verdict.outcome, result) == (Outcome.INCONCLUSIVE, 1)
        assert "vary by a factor of 2.00" in actual.verdict.reasons[0]


def test_speedup_beyond_the_device_is_inconclusive() -> None:
    assert measured(taking(4.0, 2.0), ceiling=1.9)[0].verdict.outcome is Outcome.PASS
    actual, _ = measured(taking(4.0, 1.0), ceiling=2.0)
    assert actual.verdict.outcome is Outcome.INCONCLUSIVE
    assert "a speedup of 4 is above 1.1 times the 2" in actual.verdict.reasons[0]


@pytest.mark.parametrize("arms", [[taking(4.0, 2.0)], [taking(4.0, 4.0), taking(4.0, 5.0)]])
def test_facts_are_plain_json(arms: list[Arms]) -> None:
    facts = measured(*arms)[0].facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["floor"] == 1.5
    assert facts["confidence"] == 0.99
