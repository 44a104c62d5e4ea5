"""Each planted defect turns the suites red, by a test that is meant for it."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from pathlib import Path

import pytest

from pytest_amp.record import read_record
from tests.planted.defect import Defect
from tests.planted.manifest import DEFECTS
from tests.planted.manifest_fingerprint import FINGERPRINT_ON_CUDA
from tests.planted.manifest_scaler import SCALER_ON_CUDA
from tests.planted.manifest_semantics_kinds import SEMANTICS_KINDS_ON_CUDA
from tests.planted_in_the_diff import named, observes
from tests.project import INSTALLED, ROOT

PLANTED = ROOT / "tests" / "planted"
#: Modules of the folder that plant nothing.
HELPERS = {"changed_gradients", "compiling", "defect", "kernels", "overriding"}
TIMEOUT = 300.0

#: Each defect needs a process of its own, and none needs to import torch anew: they are forked
#: from one that has. Optimizers import torch._dynamo, a summary of pytest imports hypothesis: a second each.
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["torch._dynamo", "numpy", "pytest", "hypothesis"])


def _arguments(defect: Defect) -> list[str]:
    given = " ".join(defect.arguments)
    device = [] if "--amp-device" in given else ["--amp-device=cpu"]
    dtype = [] if "--amp-dtype" in given else ["--amp-dtype=bf16"]
    loaded = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
    plugins = [*loaded, "-p", defect.module, "-p", "no:cacheprovider", "-p", "no:randomly"]
    # Of a file, the test that is meant for the defect (all of its parameters, where not all of its id is given).
    test = defect.failing if defect.failing.endswith("]") else defect.failing.partition("[")[0]
    where = [f"{argument}::{test}" if argument.endswith(".py") else argument for argument in defect.arguments]
    return [*plugins, "-q", "-rfE", "--tb=no", *device, *dtype, *where]


def _run(arguments: list[str], environment: dict[str, str], output: Path) -> None:
    """In the new process: a run of pytest as if it had been typed at the root."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(PLANTED)]
    sys.exit(pytest.main(arguments))


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.module for defect in DEFECTS])
def test_a_planted_defect_is_noticed(defect: Defect, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    path = os.pathsep.join([str(ROOT), str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    output = tmp_path / "output"
    record = tmp_path / "record.json"
    arguments = [*_arguments(defect), f"--amp-record={record}"]
    process = _FORKING.Process(target=_run, args=(arguments, environment, output))
    process.start()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
    text = output.read_text(encoding="utf-8", errors="replace")
    assert process.exitcode == pytest.ExitCode.TESTS_FAILED, text
    failed = [line for line in text.splitlines() if re.match("FAILED |ERROR ", line)]
    assert any(defect.failing in line for line in failed), text
    # Whoever compares this run with a healthy one reads it there.
    assert not observes(defect) or any(named(defect, failure.key) for failure in read_record(record).failures), text


def test_every_planted_defect_is_in_the_manifest() -> None:
    modules = {path.stem for path in PLANTED.glob("*.py") if not path.stem.startswith("manifest")} - HELPERS
    on_cuda = (*SCALER_ON_CUDA, *FINGERPRINT_ON_CUDA, *SEMANTICS_KINDS_ON_CUDA)
    assert {defect.module for defect in (*DEFECTS, *on_cuda)} == modules
