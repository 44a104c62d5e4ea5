"""The cases of the family: the whole zoo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_amp.cases import zoo
from pytest_amp.cases.wider import wider_zoo
from pytest_amp.run.targets import Target


def every_case(target: Target) -> Iterator[object]:
    """Yield the zoo, the wider zoo, and the cases of projects."""
    for case in (*zoo(), *wider_zoo(), *target.added_cases()):
        yield pytest.param(case, id=case.name)
