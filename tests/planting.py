"""A run of pytest with a planted defect, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.planted.defect import Defect
from tests.project import INSTALLED, ROOT

PLANTED = ROOT / "tests" / "planted"

#: Each defect needs a process of its own, and none needs to import torch anew: they are forked
#: from one that has. Optimizers import torch._dynamo, a summary of pytest imports hypothesis: a second each.
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["torch._dynamo", "numpy", "pytest", "hypothesis"])


#: The plugin, as arguments of pytest.
PLUGIN = [*([] if INSTALLED else ["-p", "pytest_amp.plugin"]), "-p", "no:cacheprovider"]


def loaded(defect: Defect) -> list[str]:
    """The plugin and the defect, as arguments of pytest."""
    return [*PLUGIN, "-p", defect.module]


def target(defect: Defect) -> list[str]:
    """The CPU and bf16, where the defect's arguments do not name others."""
    given = " ".join(defect.arguments)
    device = [] if "--amp-device" in given else ["--amp-device=cpu"]
    return device + ([] if "--amp-dtype" in given else ["--amp-dtype=bf16"])


def where(defect: Defect, failing: str) -> list[str]:
    """Of a file, the test ``failing`` (all of its parameters, where not all of its id is given)."""
    test = failing if failing.endswith("]") else failing.partition("[")[0]
    return [f"{argument}::{test}" if argument.endswith(".py") else argument for argument in defect.arguments]


def run(
    arguments: list[str], output: Path, *, timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Exit status and output of pytest as if it had been typed at the root; it is killed after ``timeout`` seconds.

    ``environment`` is the process's own where it is not given, ``output`` a file to be made.
    """
    process = _FORKING.Process(target=_run, args=(arguments, environment, output))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""


def _run(arguments: list[str], environment: Mapping[str, str] | None, output: Path) -> None:
    """In the new process."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(PLANTED)]
    sys.exit(pytest.main(arguments))
