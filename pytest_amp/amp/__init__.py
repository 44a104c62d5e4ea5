"""The fixture ``amp``: the noun that carries the checks."""

from __future__ import annotations

from pytest_amp.amp.base import NOTES, OBSERVATIONS
from pytest_amp.amp.compilation import CompileChecks
from pytest_amp.amp.costs import CostChecks
from pytest_amp.amp.loops import LoopChecks
from pytest_amp.amp.numerics import NumericChecks

__all__ = ["NOTES", "OBSERVATIONS", "Amp"]


class Amp(NumericChecks, LoopChecks, CompileChecks, CostChecks):
    """Mixed precision on one device in one dtype, for one test."""
