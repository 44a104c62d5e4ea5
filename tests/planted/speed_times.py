"""Planted defects of the comparison of times: with another card, after a change of the card, and of one arm."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from tests.planted.table import defect, swap

TIMES = "tests/speed/test_times.py::"


@defect(
    "A card that runs at another speed than in the baseline is not noticed: its yardsticks never move",
    caught_by=f"{TIMES}test_yardstick_that_moved_is_inconclusive[tensor-cores",
)
def yardstick_never_moves() -> None:
    swap("pytest_amp.record.times", "_moved", lambda *_: "")


@defect(
    "Launches of an overloaded host count as a change of the card, and no time of the device is compared",
    caught_by=f"{TIMES}test_host_launches_do_not_affect_device_time",
)
def host_counts_for_the_device() -> None:
    from pytest_amp.record import times

    swap(times, "OF_DEVICE", tuple(times.NOISE))


@defect(
    "A card that slowed down since the process began is not measured again before a red",
    caught_by=f"{TIMES}test_yardstick_is_measured_again_before_a_red",
)
def yardstick_is_measured_once() -> None:
    from pytest_amp.speed import gate

    original = gate._Bench.__init__

    def with_first(self: Any, make_step: Any, demand: Any, conditions: Any, clock: Any) -> None:
        def measured_on(device: Any, clock: Any, **_: bool) -> Any:
            return conditions.measured_on(device, clock)

        original(self, make_step, demand, replace(conditions, measured_on=measured_on), clock)

    swap(gate._Bench, "__init__", with_first)


@defect(
    "The time of another card is compared as it is, whatever its yardsticks take",
    caught_by=f"{TIMES}test_time_on_another_card_is_compared_with_the_translated_one",
)
def time_of_another_card_is_not_translated() -> None:
    swap("pytest_amp.record.times", "translated", lambda before, _: before)


@defect(
    "The time of a step is compared with that of another host",
    caught_by=f"{TIMES}test_step_time_of_another_card_or_host_is_not_compared[host",
)
def host_of_a_step_is_ignored() -> None:
    from pytest_amp.record.times import Conditions

    original: Any = Conditions.from_json

    def without_host(data: Any) -> Any:
        conditions = original(data)
        return conditions and Conditions(conditions.gpu, "", conditions.yardstick)

    swap(Conditions, "from_json", staticmethod(without_host))


@defect(
    "Only a speedup is judged: what takes longer in both arms is not red",
    caught_by=f"{TIMES}test_two_percent_longer_is_red_in_either_arm[3.06-2.04",
)
def slower_arms_are_not_judged() -> None:
    swap("pytest_amp.speed.times.ArmTime", "is_slower", False)


@defect(
    "An arm that takes longer is not measured again: a disturbance of one measurement is red",
    caught_by=f"{TIMES}test_single_longer_time_is_not_red",
)
def slower_arm_is_not_confirmed() -> None:
    # pytest_amp.speed has the function measure() under the name of its module.
    swap(importlib.import_module("pytest_amp.speed.measure"), "hull", lambda first, _: first)


@defect(
    "A speedup that fell since float32 gained is an improvement even if autocast takes longer than before",
    caught_by=f"{TIMES}test_gain_of_float32_does_not_hide_slower_autocast",
)
def gain_of_float32_hides_a_slower_autocast() -> None:
    from pytest_amp.record import Verdict, times

    swap(times, "only_float32_gained", lambda _, verdicts: verdicts[0] is Verdict.IMPROVED)


@defect(
    "A gain of float32 is red, as a smaller speedup",
    caught_by=f"{TIMES}test_ratio_that_falls_since_float32_gained_is_an_improvement[2.0",
)
def gain_of_float32_is_red() -> None:
    swap("pytest_amp.speed.gate", "float32_gained", lambda _: False)


@defect(
    "A speedup that fell since float32 gained passes below the required floor",
    caught_by=f"{TIMES}test_improvement_keeps_the_required_floor",
)
def improvement_needs_no_floor() -> None:
    from pytest_amp.speed import gate, verdict

    original = verdict.with_floor
    swap(gate, "with_floor", lambda measured, _: original(measured, 0.0))
