"""Each planted defect turns the suites red, by a test that is meant for it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pytest_amp.record import read_record
from tests.planted.defect import Defect
from tests.planted.manifest import DEFECTS
from tests.planted.manifest_fingerprint import FINGERPRINT_ON_CUDA
from tests.planted.manifest_scaler import SCALER_ON_CUDA
from tests.planted.manifest_semantics_kinds import SEMANTICS_KINDS_ON_CUDA
from tests.planted_in_the_diff import named, observes
from tests.planting import PLANTED, loaded, run, target, where
from tests.project import ROOT

#: Modules of the folder that plant nothing.
HELPERS = {"changed_gradients", "compiling", "defect", "kernels", "on_device", "overriding"}
TIMEOUT = 300.0


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.module for defect in DEFECTS])
def test_a_planted_defect_is_noticed(defect: Defect, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    path = os.pathsep.join([str(ROOT), str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    record = tmp_path / "record.json"
    arguments = [*loaded(defect), "-p", "no:randomly", "-q", "-rfE", "--tb=no", *target(defect)]
    arguments += [*where(defect, defect.failing), f"--amp-record={record}"]
    status, text = run(arguments, tmp_path / "output", timeout=TIMEOUT, environment=environment)
    assert status == pytest.ExitCode.TESTS_FAILED, text
    failed = [line for line in text.splitlines() if re.match("FAILED |ERROR ", line)]
    assert any(defect.failing in line for line in failed), text
    # Whoever compares this run with a healthy one reads it there.
    assert not observes(defect) or any(named(defect, failure.key) for failure in read_record(record).failures), text


def test_every_planted_defect_is_in_the_manifest() -> None:
    modules = {path.stem for path in PLANTED.glob("*.py") if not path.stem.startswith("manifest")} - HELPERS
    on_cuda = (*SCALER_ON_CUDA, *FINGERPRINT_ON_CUDA, *SEMANTICS_KINDS_ON_CUDA)
    assert {defect.module for defect in (*DEFECTS, *on_cuda)} == modules
