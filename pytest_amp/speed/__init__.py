"""Checks of the speed of mixed precision: a ratio of alternating measurements with an interval, against a floor."""

from pytest_amp.cases import MakeOptimizer
from pytest_amp.speed.demand import NO_FLOOR, NO_HARM, Demand, SpeedConditions, kind_on
from pytest_amp.speed.derived import conservative_floor
from pytest_amp.speed.gate import check_speedup
from pytest_amp.speed.hardware import kinds_of_float32
from pytest_amp.speed.measure import Measured, measure
from pytest_amp.speed.paired import Arms, Plan
from pytest_amp.speed.times import ArmTime, TimeBefore
from pytest_amp.speed.verdict import Interval, Outcome, Rule, SpeedVerdict
from pytest_amp.speed.workloads import (
    TimedStep,
    Workload,
    arms_of,
    name_of,
    step_maker,
    step_of,
    training_step,
)

__all__ = [
    "NO_FLOOR",
    "NO_HARM",
    "ArmTime",
    "Arms",
    "Demand",
    "Interval",
    "MakeOptimizer",
    "Measured",
    "Outcome",
    "Plan",
    "Rule",
    "SpeedConditions",
    "SpeedVerdict",
    "TimeBefore",
    "TimedStep",
    "Workload",
    "arms_of",
    "check_speedup",
    "conservative_floor",
    "kind_on",
    "kinds_of_float32",
    "measure",
    "name_of",
    "step_maker",
    "step_of",
    "training_step",
]
