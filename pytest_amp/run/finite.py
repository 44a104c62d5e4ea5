"""Check for nonfinite values, none of which passes regardless of the check's verdict."""

from __future__ import annotations

import math

import pytest

from pytest_amp.failure import AmpFailure
from pytest_amp.record import Kind, Observation
from pytest_amp.run.identity import OBSERVATIONS

#: Kinds whose value is one number. A state, a count or a series may be infinite.
_NUMBERS = frozenset({Kind.ERROR, Kind.RATIO, Kind.SECONDS, Kind.BYTES, Kind.MEASURE})


def expect_finite(item: pytest.Item, report: pytest.TestReport) -> None:
    """Make red the report of a test that passed and observed a nonfinite value or limit.

    An infinite error does not exceed an infinite limit, and NaN exceeds nothing.
    """
    if report.when != "call" or not report.passed:
        return
    bad = next((each for each in item.stash.get(OBSERVATIONS, []) if not _is_finite(each)), None)
    if bad is None:
        return
    report.outcome = "failed"
    report.longrepr = AmpFailure.message(
        f"{bad.key} is {bad.value}{'' if bad.allowed is None else f', and {bad.allowed} is allowed'}",
        label_before="rule",
        before="neither a number nor its limit passes that is not finite",
        likely="a division by zero, an overflow, or a limit that is made of what overflowed",
    )
    vars(report).pop("wasxfail", None)


def _is_finite(observation: Observation) -> bool:
    numbers = [observation.allowed, observation.value if observation.kind in _NUMBERS else None]
    return all(math.isfinite(each) for each in numbers if isinstance(each, (int, float)))
