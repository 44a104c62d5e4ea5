"""GradScaler: a model of it in plain Python, programs that compare the real one with it, and checks for users."""

from pytest_amp.cases import Case, MakeOptimizer
from pytest_amp.scaler.iteration import Iteration, Train, plain_sgd, standard_step
from pytest_amp.scaler.reference import Gradients, ReferenceScaler, Refused, Stage, UpdateRule, float16, float32
from pytest_amp.scaler.step_check import LowLoss, SwallowedOverflow, check_scaler
from pytest_amp.scaler.trace import Training, trace_callable
from pytest_amp.scaler.watched import ScalerTrace, TraceStep

__all__ = [
    "Case",
    "Gradients",
    "Iteration",
    "LowLoss",
    "MakeOptimizer",
    "ReferenceScaler",
    "Refused",
    "ScalerTrace",
    "Stage",
    "SwallowedOverflow",
    "TraceStep",
    "Train",
    "Training",
    "UpdateRule",
    "check_scaler",
    "float16",
    "float32",
    "plain_sgd",
    "standard_step",
    "trace_callable",
]
