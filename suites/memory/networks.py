"""The cases of the family: the whole zoo, as far as this machine runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_amp.cases import Case, lacks_lstm_kernel, zoo
from pytest_amp.cases.wider import wider_zoo
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target


def every_case(target: Target) -> Iterator[object]:
    """Yield the zoo, the wider zoo, and the cases of projects."""
    for case in (*zoo(), *wider_zoo(), *target.added_cases()):
        yield pytest.param(case, id=case.name, marks=_marks(case, target))


def _marks(case: Case, target: Target) -> list[pytest.MarkDecorator]:
    reason = lacks_lstm_kernel(target.device.type, target.precision.name) if case.name == "lstm" else None
    return [pytest.mark.xfail(reason=reason, raises=AmpFailure, strict=True)] if reason else []
