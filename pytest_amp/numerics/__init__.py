"""Checks of the values that mixed precision computes: error metrics, reference, tolerances."""

from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import exceeds, is_hollow, relative_error
from pytest_amp.numerics.manual_cast_mode import asked_for_autocast, manual_casts
from pytest_amp.numerics.operators import (
    MeasuredOperator,
    check_operator,
    confirmed_operator,
    measure_operator,
    measure_registered,
)
from pytest_amp.numerics.prediction import Prediction, predict
from pytest_amp.numerics.reductions import Roundings, check_reduction, measure_roundings
from pytest_amp.numerics.step import Step, run_step

__all__ = [
    "Conditions",
    "MeasuredOperator",
    "Prediction",
    "Roundings",
    "Step",
    "asked_for_autocast",
    "check_operator",
    "check_reduction",
    "confirmed_operator",
    "exceeds",
    "is_hollow",
    "manual_casts",
    "measure_operator",
    "measure_registered",
    "measure_roundings",
    "predict",
    "relative_error",
    "run_step",
]
