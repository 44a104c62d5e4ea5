"""Fixtures of the real models, and the message of a run without ``make real-models``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.real_models import torchvision_operators
from tests.real_models.model import RealModel
from tests.real_models.registry import MODELS

FOLDER = Path(__file__).parent
CHECKS = (FOLDER / "test_checks.py", FOLDER / "test_planted.py")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: weights are random


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that exists if this folder is an argument of pytest."""
    parser.addoption(
        "--require-libraries",
        action="store_true",
        help="fail, rather than skip, real models whose library is not installed, or too old",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Expect the faults of torch in ``known.toml``, unless the command names another file."""
    if config.getoption("amp_known", default=None) is None:
        config.option.amp_known = str(FOLDER / "known.toml")


class LeftOut(pytest.Module):
    """Checks, skipped in one line: they take minutes, and libraries that the project does not depend on."""

    def collect(self) -> list[pytest.Item]:
        """Skip, and name the command that runs the checks."""
        reason = f"checks of {len(MODELS)} real models run by: make real-models"
        raise pytest.skip.Exception(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Leave the checks out of a run that does not name this folder."""
    if module_path not in CHECKS or any(parent.session.isinitpath(path) for path in (*CHECKS, FOLDER)):
        return None
    return LeftOut.from_parent(parent, path=module_path)


@pytest.fixture
def model(row: RealModel, request: pytest.FixtureRequest) -> RealModel:
    """Return the row of the table; skip by name if its library is not installed, or too old."""
    if row.missing is not None:
        message = f"{row.name}: {row.missing}"
        if request.config.getoption("--require-libraries", default=False):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    torchvision_operators.provide()
    return row


@pytest.fixture
def case(amp: Any, model: RealModel) -> Any:
    """Return the model as a case."""
    return amp.case(model.build, model.batch, model.loss, name=model.name)
