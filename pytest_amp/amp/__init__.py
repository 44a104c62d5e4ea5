"""Fixture ``amp``, whose methods are the checks."""

from __future__ import annotations

from pytest_amp.amp.whole import WholeCheck

__all__ = ["Amp"]


class Amp(WholeCheck):
    """Mixed precision on one device in one dtype, for one test."""
