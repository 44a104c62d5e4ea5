"""Fixture of the child process that calls operators, for all tests of this family.

pytest loads this file before it knows whether a test of the family runs: torch is imported in the fixtures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_amp.child_process import ExaminationFailed, plugin_modules
from pytest_amp.failure import AmpFailure

if TYPE_CHECKING:
    from pytest_amp.fingerprint.sweep import FingerprintSweep


@pytest.fixture(scope="session")
def sweep(request: pytest.FixtureRequest) -> Iterator[FingerprintSweep]:
    """Return the sweep of this session."""
    from pytest_amp.fingerprint.sweep import FingerprintSweep

    opened = FingerprintSweep(modules=plugin_modules(request.config), path=sys.path)
    yield opened
    try:
        opened.close()
    except ExaminationFailed as failed:
        raise AmpFailure(f"the operators were examined, but {failed}") from None
