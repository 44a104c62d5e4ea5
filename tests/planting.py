"""Run of pytest with a planted defect, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.forked import run_pytest
from tests.planted.table import Defect
from tests.project import INSTALLED, ROOT

#: The plugin, as arguments of pytest; a summary of Hypothesis would import it, which takes a second.
PLUGIN = [*([] if INSTALLED else ["-p", "pytest_amp.plugin"]), "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]


def planting(name: str) -> list[str]:
    """Return arguments of pytest that plant a defect."""
    return ["-p", "tests.planted", f"--plant={name}"]


def target(defect: Defect) -> list[str]:
    """Return the device and the dtype of a defect's test, as arguments of pytest."""
    return [f"--amp-device={defect.device}", f"--amp-dtype={defect.dtype}"]


def selection(test: str) -> str:
    """Return the argument of pytest that selects a test: its id, or its function if the id is not whole."""
    return test if test.endswith("]") else test.partition("[")[0]


def run(
    arguments: list[str], output: Path, *, timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run pytest at the root, and return its exit status and its output; it is killed after ``timeout`` seconds.

    ``environment`` is this process's own by default; ``output`` is a file that does not exist yet.
    """
    actual = dict(os.environ if environment is None else environment)
    actual["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [actual.get("PYTHONPATH")])])  # for its children
    status = run_pytest(arguments, ROOT, output, timeout=timeout, environment=actual)
    return status, output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
