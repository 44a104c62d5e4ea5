"""Fixture ``amp``, whose methods are the checks."""

from __future__ import annotations

from pytest_amp.amp.base import NOTES, OBSERVATIONS
from pytest_amp.amp.fixture import Amp, SuiteAmp

__all__ = ["NOTES", "OBSERVATIONS", "Amp", "SuiteAmp"]
