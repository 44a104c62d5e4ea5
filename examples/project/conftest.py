"""The whole set-up of a project: its model as a case of the suites, and where a record comes from."""

import os
from pathlib import Path

import pytest
from model import batch, build, loss

from pytest_amp.cases import Case


def pytest_amp_cases():
    """The gradient suites run it, too."""
    yield Case(name="classifier", build=build, batch=batch, loss=loss)


def pytest_amp_provenance(provenance):
    """What a record of ours says besides."""
    provenance["image"] = os.environ.get("IMAGE_DIGEST", Path(__file__).parent.name)


@pytest.fixture
def classifier(amp):
    """The same case, for tests of our own."""
    return amp.case(build, batch, loss, name="classifier")
