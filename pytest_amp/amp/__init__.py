"""Fixture ``amp``, whose methods are the checks."""

from __future__ import annotations

from pytest_amp.amp.fixture import Amp, SuiteAmp

__all__ = ["Amp", "SuiteAmp"]
