"""Run of pytest with a planted defect, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.planted.table import Defect
from tests.project import INSTALLED, ROOT

#: Each defect needs a process of its own, and none needs to import torch again: they are forked
#: from one that has. Optimizers import torch._dynamo, a summary of pytest imports hypothesis: a second each.
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["torch._dynamo", "numpy", "pytest", "hypothesis"])


#: The plugin, as arguments of pytest.
PLUGIN = [*([] if INSTALLED else ["-p", "pytest_amp.plugin"]), "-p", "no:cacheprovider"]


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
    process = _FORKING.Process(target=_run, args=(arguments, environment, output))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""


def _run(arguments: list[str], environment: Mapping[str, str] | None, output: Path) -> None:
    """Run pytest in the new process."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.exit(pytest.main(arguments))
