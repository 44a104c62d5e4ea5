"""Rounding oracle: predict the values of mixed precision in float64 arithmetic with explicit rounding."""

from pytest_amp.numerics.oracle.run import Wide, run_exact, run_virtual
from pytest_amp.numerics.oracle.trace import Row, Trace, observed_step, trace_of
from pytest_amp.numerics.oracle.virtual import CannotFollow, Predictor

__all__ = [
    "CannotFollow",
    "Predictor",
    "Row",
    "Trace",
    "Wide",
    "observed_step",
    "run_exact",
    "run_virtual",
    "trace_of",
]
