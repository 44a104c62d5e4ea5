"""Environments of releases: a virtual environment for each, or an existing interpreter with the release."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

from tools.release_support.workplace import StepFailed, Workplace

#: Prints whether an interpreter loads the plugin by an entry point; otherwise ``-p`` loads it.
_HAS_PLUGIN = "import importlib.metadata as m; print(any(e.name == 'amp' for e in m.entry_points(group='pytest11')))"


def install(place: Workplace, name: str, requirement: str) -> Path:
    """Create a virtual environment with ``requirement`` and the needs of the suites; return its interpreter."""
    python = place.path(name) / "bin" / "python"
    place.call([sys.executable, "-m", "venv", "--clear", str(place.path(name))], log=f"{name}.log")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    place.call([*pip, "--upgrade", "pip>=25.1"], log=f"{name}.log")
    place.call([*pip, requirement], log=f"{name}.log")
    group = f"--group={place.root / 'pyproject.toml'}:test"
    place.call([*pip, "--editable", f"{place.root}[suites,html]", group, requirement], log=f"{name}.log")
    return python


def version_of(python: Path) -> str:
    """Return the version of the torch of an interpreter. Raises StepFailed if it cannot import one."""
    command = [str(python), "-c", "import torch; print(torch.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise StepFailed(f"{python}: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no torch"]
        raise StepFailed(f"{python}: torch cannot be imported: {lines[-1][:200]}")
    return done.stdout.strip()


def expect_version(version: str, requirement: str, last: str) -> None:
    """Raise StepFailed if a torch is not the required one, or is older than the data."""
    result = Version(version)
    _, equal, expected = requirement.partition("==")
    if equal and result.public != Version(expected.strip()).public:
        raise StepFailed(f"the interpreter has torch {version}, and {requirement} is to be supported")
    if result.release[:2] < Version(last).release[:2]:
        raise StepFailed(f"torch {version} is older than the data, which ends with {last}")


def pytest_of(python: Path, root: Path) -> list[str]:
    """Return the command that runs pytest with the plugin of the checkout ``root``."""
    command = [str(python), "-c", _HAS_PLUGIN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment_of(root))
    loads = [] if done.stdout.strip() == "True" else ["-p", "pytest_amp.plugin"]
    return [str(python), "-m", "pytest", *loads]


def environment_of(root: Path) -> dict[str, str]:
    """Return the environment of a process that imports the packages of the checkout ``root``."""
    return {**os.environ, "PYTHONPATH": str(root)}
