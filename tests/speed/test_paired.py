"""Paired measurement: order, repeats, budget, and reasons for doubt."""

from __future__ import annotations

import math

import pytest

from pytest_amp.speed.clocks import ClockError
from pytest_amp.speed.paired import Arms, Measurement, Plan, Quad
from pytest_amp.speed.verdict import Outcome
from tests.speed.simulated import SimulatedClock, taking

PLAN = Plan(warm_up=0)


def measurement(arms: Arms, plan: Plan = PLAN) -> Measurement:
    clock = SimulatedClock()
    return Measurement(arms, clock, plan, now=clock.now)


def noting(order: list[str]) -> Arms:
    """Return arms that record their calls: 3 ms for A, the reference, 2 ms for B."""

    def call(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    return Arms(lambda: call("A", 3e-3), lambda: call("B", 2e-3))


def test_quad_is_reference_candidate_candidate_reference() -> None:
    order: list[str] = []
    measured = measurement(noting(order))
    order.clear()
    log_ratio = measured.quad()
    assert "".join(order) == "AAAAA" + "BBBBBBBBBB" + "AAAAA"
    assert math.exp(log_ratio) == pytest.approx(1.5)
    assert measured.reference == [3e-3, 3e-3]
    assert measured.candidate == [2e-3, 2e-3]


def test_block_is_its_fastest_timing() -> None:
    quad = Quad((3.0, 2.0, 9.0), (1.0, 5.0), (4.0, 1.0), (8.0, 2.0))
    assert (quad.reference, quad.candidate) == ((2.0, 2.0), (1.0, 1.0))
    assert math.exp(quad.log_ratio) == pytest.approx(2.0)


def test_drift_cancels_in_a_quad() -> None:
    """A machine that slows down by the same factor with each block shows the same ratio as without."""
    slower = 1.05
    quad = Quad((2.0,), (1.0 * slower,), (1.0 * slower**2,), (2.0 * slower**3,))
    assert math.exp(quad.log_ratio) == pytest.approx(2.0)


def test_slow_arm_is_not_repeated_more_often() -> None:
    measured = measurement(taking(40e-6, 20e-6))
    assert measured.repeats == (32, 64), "as often as makes a timing last a millisecond"
    assert measured.repeats[0] * 40e-6 >= PLAN.shortest


def test_arms_are_warmed_up_alternately() -> None:
    order: list[str] = []
    measurement(noting(order), Plan(warm_up=0.04))
    assert "".join(order).endswith("AABBAABBAABBAABB")


def test_long_calls_have_smaller_blocks() -> None:
    """The first 12 quads take four of the five seconds."""
    assert measurement(taking(0.01, 0.01)).timings == 5
    assert measurement(taking(0.05, 0.02)).timings == 2
    assert measurement(taking(2.0, 1.0)).timings == 1


def test_look_beyond_the_budget_is_not_affordable() -> None:
    measured = measurement(taking(0.01, 0.01))
    for _ in range(12):
        measured.quad()
    assert measured.affordable(1, Outcome.PASS)
    assert not measured.affordable(24, Outcome.FAIL)
    assert measured.affordable(12, Outcome.INCONCLUSIVE), "what is not decided may take twice the time"
    assert not measured.affordable(48, Outcome.INCONCLUSIVE)


def test_spread_is_that_of_the_worse_arm() -> None:
    measured = measurement(taking(3e-3, [2e-3] * 30 + [4e-3] * 30))
    for _ in range(12):
        measured.quad()
    assert measured.spread == pytest.approx(2.0)


def test_clock_that_misses_most_of_the_time_is_doubted() -> None:
    clock = SimulatedClock()
    half_seen = Measurement(taking(3e-3, 2e-3), clock, PLAN, now=lambda: clock.now() * 1.8)
    assert half_seen.doubts == ()
    hardly_seen = Measurement(taking(3e-3, 2e-3), clock, PLAN, now=lambda: clock.now() * 4)
    assert "the clock saw 25% of the time" in hardly_seen.doubts[0]


def test_clock_that_misses_one_arm_is_doubted() -> None:
    """Work under autocast on a stream of its own is one cause: the other arm does not vouch for it."""
    clock, arms = SimulatedClock(), taking(3e-3, 2e-3)
    unseen = 0

    def candidate() -> object:
        nonlocal unseen
        unseen += 1
        return arms.candidate()

    actual = Measurement(Arms(arms.reference, candidate), clock, PLAN, now=lambda: clock.now() + 0.02 * unseen)
    assert "the clock saw 9% of the time" in actual.doubts[0]


def test_stopped_clock_is_an_error() -> None:
    with pytest.raises(ClockError, match="stood still"):
        measurement(taking(0.0, 2e-3))
