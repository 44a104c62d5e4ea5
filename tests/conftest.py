"""Fixtures of the plugin's own tests."""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

import pytest_amp
from tests.project import INSTALLED, ROOT, Project

pytest_plugins = ["pytester"]

# No test is red because its machine was busy: time limits are those of --amp-timeout.
hypothesis.settings.register_profile("pytest-amp", deadline=None)
hypothesis.settings.load_profile("pytest-amp")

#: The package, whose skips are for users, and for the suites.
PACKAGE = Path(pytest_amp.__file__).parent
#: Parts of the package that runs in this process share, so that a run need not import them (and torch) again.
SHARED = ("cases", "data_files", "devices", "known", "precision", "record", "report", "run", "speed", "text")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skip by the package itself as a failure: the test expected something else, and checked nothing."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and PACKAGE in Path(report.longrepr[0]).parents:
        report.outcome, report.longrepr = "failed", f"skipped by the package itself: {report.longrepr[2]}"
    return report


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed every test alike in each run, independent of the tests before: none is red, or green, by luck."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # a case may draw from numpy's global generator
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one CPU thread, as checks do: with more, sums and so bits depend on their number, and small work waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def _imported() -> None:
    """Keep imported modules: pytester removes the imports of a run, and torch cannot be imported twice."""
    names = [f"pytest_amp.{actual.name}" for actual in pkgutil.iter_modules(pytest_amp.__path__) if not actual.ispkg]
    names.append("torch._dynamo")  # fake tensors bring it
    for part in SHARED:
        package = importlib.import_module(f"pytest_amp.{part}")
        names += [f"{package.__name__}.{actual.name}" for actual in pkgutil.iter_modules(package.__path__)]
    for name in names:
        importlib.import_module(name)


@pytest.fixture
def project(_imported: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return an empty project, isolated from the outer run, GPUs included."""
    for name in [name for name in os.environ if name.startswith(("PYTEST_XDIST", "PYTEST_ADDOPTS"))]:
        monkeypatch.delenv(name)
    for name in ("CI", "BUILD_NUMBER"):  # pytest otherwise prints whole messages in its summary, a second time
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if not INSTALLED:
        actual = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *([actual] if actual else [])]))
    return Project(pytester)
