"""Operators that models use: results and gradients are those of manual casts, and agree with float64."""

from __future__ import annotations

import pytest

from pytest_amp.amp import SuiteAmp

from .operators import OPERATORS, case_of


# rms_norm of low-precision values with a float32 weight is not fused: pytorch/pytorch#167308, before 2.12 and on CPUs.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(amp: SuiteAmp, name: str) -> None:
    amp.check_gradients(case_of(name, OPERATORS[name]))
