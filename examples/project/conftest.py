"""Set-up of a whole project: its model as a case of the suites, and the provenance of its records."""

import os
from pathlib import Path

import pytest
from model import batch, build, loss

from pytest_amp.cases import Case


def pytest_amp_cases():
    """Add the case to the gradient suites."""
    yield Case(name="classifier", build=build, batch=batch, loss=loss)


def pytest_amp_provenance(provenance):
    """Add facts to the provenance of a record."""
    provenance["image"] = os.environ.get("IMAGE_DIGEST", Path(__file__).parent.name)


@pytest.fixture
def classifier(amp):
    """Return the same case, for the project's own tests."""
    return amp.case(build, batch, loss, name="classifier")
