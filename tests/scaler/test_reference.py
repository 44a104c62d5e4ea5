"""Reference model of GradScaler: the rule, and what short random programs (test_programs.py) do not reach."""

from __future__ import annotations

import math

import pytest

from pytest_amp.scaler import Gradients, ReferenceScaler, Refused, Stage, UpdateRule, float16, float32
from pytest_amp.scaler.transitions import CALLS, TABLE, State, Transition, outcome


def started(**state: object) -> ReferenceScaler:
    scaler = ReferenceScaler(**state)  # type: ignore[arg-type]
    scaler.scale()
    return scaler


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, 1.0), (0.1, 0.10000000149011612), (1e39, math.inf), (-1e39, -math.inf), (1e-46, 0.0), (math.inf, math.inf)],
)
def test_float32_rounds(value: float, expected: float) -> None:
    assert float32(value) == expected


def test_float32_preserves_nan() -> None:
    assert math.isnan(float32(math.nan))


def test_rule_grows_on_the_step_that_completes_the_interval() -> None:
    rule = UpdateRule(growth_interval=3)
    assert rule.after(8.0, 1, found_inf=False) == (8.0, 2)
    assert rule.after(8.0, 2, found_inf=False) == (16.0, 0)
    assert rule.after(8.0, 3, found_inf=False) == (8.0, 4)


def test_rule_backs_off_at_any_count() -> None:
    assert UpdateRule().after(8.0, 5, found_inf=True) == (4.0, 0)


def test_rule_stops_at_the_largest_finite_scale() -> None:
    assert UpdateRule(growth_interval=1).after(2.0**127, 0, found_inf=False) == (2.0**127, 0)


def test_rule_rounds_to_float32() -> None:
    assert UpdateRule(backoff_factor=0.1).after(1.0, 0, found_inf=True) == (float32(0.1), 0)


@pytest.mark.parametrize("call", CALLS)
def test_disabled_model_accepts_every_call(call: str) -> None:
    assert outcome(call, State.DISABLED) == (Transition(State.DISABLED), State.DISABLED)


def test_transition_table_is_complete() -> None:
    assert TABLE.keys() == set(CALLS)
    assert all(outcomes.keys() == set(State) - {State.DISABLED} for outcomes in TABLE.values())


def test_inf_of_one_optimizer_skips_that_one_only() -> None:
    scaler = started(scale_now=8.0)
    assert scaler.step("one", Gradients.FINITE) is True
    assert scaler.step("other", Gradients.NON_FINITE) is False
    scaler.update()
    assert scaler.scale_now == 4.0


def test_new_scale_keeps_the_tracker() -> None:
    scaler = started(tracker=3)
    scaler.step("it", Gradients.NON_FINITE)
    scaler.update(3.0)
    assert (scaler.scale_now, scaler.tracker, scaler.stage("it")) == (3.0, 3, Stage.READY)


def test_state_dict_restores_the_state() -> None:
    scaler = ReferenceScaler(3.0, UpdateRule(4.0, 0.25, 7), tracker=5)
    other = ReferenceScaler()
    other.load_state_dict(scaler.state_dict())
    assert other == scaler


def test_disabled_model_is_the_identity() -> None:
    scaler = ReferenceScaler(enabled=False)
    assert scaler.scale() == scaler.get_scale() == 1.0
    assert scaler.step("it", Gradients.NON_FINITE) is True
    scaler.unscale_("it", Gradients.FINITE)
    scaler.update(4.0)
    scaler.load_state_dict({})
    assert scaler.get_scale() == 1.0
    assert scaler.pickled().enabled is False


def test_float16_rounds() -> None:
    assert [float16(x) for x in (65519.0, 65520.0, 2.0**-25, 1 + 2**-11)] == [65504.0, math.inf, 0.0, 1.0]


def test_found_infs_are_stored_by_device() -> None:
    scaler = started(scale_now=8.0)
    devices = {"cuda:0": Gradients.FINITE, "cuda:1": Gradients.NON_FINITE, "cpu": Gradients.NONE}
    assert scaler.step("it", devices) is False
    assert scaler.found_inf("it") == {"cuda:0": False, "cuda:1": True}
    scaler.update()
    assert (scaler.scale_now, scaler.found_inf("it")) == (4.0, {})


def test_first_scale_rounds_the_scale() -> None:
    scaler = ReferenceScaler(0.1)
    assert scaler.get_scale() == 0.1
    assert scaler.scale() == scaler.get_scale() == float32(0.1)
    other = ReferenceScaler()
    other.load_state_dict({**scaler.state_dict(), "scale": 0.1})
    assert other.get_scale() == 0.1
    scaler.load_state_dict(other.state_dict())
    assert scaler.get_scale() == float32(0.1)


def test_fused_step_with_gradients_after_an_empty_unscale_is_refused() -> None:
    """torch fails likewise: the sum of no found-inf is the integer 0, which has no device."""
    scaler = started()
    scaler.unscale_("it", Gradients.NONE)
    with pytest.raises(Refused, match="AttributeError: 'int' object has no attribute 'device'"):
        scaler.step("it", Gradients.FINITE, fused=True)


def test_new_scale_is_rounded_to_float32() -> None:
    scaler = started()
    scaler.update(0.1)
    assert scaler.get_scale() == float32(0.1) != 0.1
