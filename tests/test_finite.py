"""Non-finite values and limits do not pass: infinity does not exceed itself, and NaN exceeds nothing."""

from __future__ import annotations

import math

import pytest

from pytest_amp.numerics import exceeds
from tests.project import ON_CPU, Project

BAD = ("inf", "nan", "-inf")
KINDS = ("error", "ratio", "seconds", "bytes", "measure")
TEST = """
import pytest

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [INF, NAN, -INF])
def test_value(amp, kind, value):
    amp.observe("x", value, kind=kind)


@pytest.mark.parametrize("value", [0.5, INF])
@pytest.mark.parametrize("allowed", [INF, NAN])
def test_allowed(amp, value, allowed):
    amp.observe("x", value, kind="error", allowed=allowed)


@pytest.mark.xfail(strict=False)
def test_expected(amp):
    amp.observe("x", INF, kind="error", allowed=INF)


@pytest.mark.parametrize("margin", [INF, NAN, -1])
def test_margin(amp, margin):
    with pytest.raises(ValueError, match="expected a finite number from 0"):
        amp.observe("x", 1.0, kind="measure", better="lower", margin=margin)
    with pytest.raises(ValueError, match="expected finite numbers, of an error"):
        amp.observe("x", 1.0, kind="error", over_seeds=(INF,))


@pytest.mark.parametrize("kind", ["state", "series"])
def test_what_is_no_number(amp, kind):
    amp.observe("x", [INF, 1.0], kind=kind)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_nonfinite_observation_is_red(project: Project, workers: str) -> None:
    project.write(test_it=TEST.replace("KINDS", repr(KINDS)))
    result = project.run(*ON_CPU, "-n", workers, "-rf")
    result.assert_outcomes(failed=3 * len(KINDS) + 4 + 1, passed=3 + 2)
    assert result.ret == 1
    text = result.stdout.str()
    assert "AmpFailure: project/cpu/bf16/x is inf, and inf is allowed" in text
    assert "AmpFailure: project/cpu/bf16/x is 0.5, and nan is allowed" in text


@pytest.mark.parametrize("error", [0.5, math.inf, math.nan])
@pytest.mark.parametrize("allowed", [math.inf, math.nan, -math.inf])
def test_nonfinite_limit_is_always_exceeded(error: float, allowed: float) -> None:
    assert exceeds(error, allowed)


@pytest.mark.parametrize(
    ("error", "expected"), [(0.5, False), (1.0, False), (1.5, True), (math.inf, True), (math.nan, True)]
)
def test_finite_limit_is_exceeded_by_larger_or_nonfinite_errors(error: float, expected: bool) -> None:  # noqa: FBT001  # a parameter of a test
    assert exceeds(error, 1.0) is expected
