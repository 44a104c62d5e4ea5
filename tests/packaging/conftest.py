"""Distributions, built once without a network, and one of them unpacked where only it can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout."""
    pytest.importorskip("hatchling", reason="the back end of the build is in the dependency group test")
    return _built(("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"), tmp_path_factory, "*.whl")


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution of this checkout."""
    pytest.importorskip("build", reason="the front end of the build is in the dependency group test")
    return _built(("-m", "build", "--sdist", "--no-isolation", "--outdir"), tmp_path_factory, "*.tar.gz")


def _built(command: tuple[str, ...], factory: pytest.TempPathFactory, pattern: str) -> Path:
    folder = factory.mktemp("dist")
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, *command, str(folder), str(ROOT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (actual,) = folder.glob(pattern)
    return actual


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH with the files that ``pip install`` of the wheel leaves, entry points included.

    It precedes an installed checkout, whose entry point has the same name and so is not loaded again.
    """
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
