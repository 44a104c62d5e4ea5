"""Each planted defect turns the suites red, by a test that is meant for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.planted.defect import Defect
from tests.planted.manifest import DEFECTS
from tests.project import INSTALLED, ROOT

PLANTED = ROOT / "tests" / "planted"
#: Modules of the folder that plant nothing.
HELPERS = {"changed_gradients", "defect", "overriding"}


def _run(defect: Defect) -> subprocess.CompletedProcess[str]:
    given = " ".join(defect.arguments)
    device = () if "--amp-device" in given else ("--amp-device=cpu",)
    dtype = () if "--amp-dtype" in given else ("--amp-dtype=bf16",)
    loaded = () if INSTALLED else ("-p", "pytest_amp.plugin")
    path = os.pathsep.join([str(ROOT), str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    return subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                *loaded,
                "-p",
                defect.module,
                "-p",
                "no:cacheprovider",
                "-p",
                "no:randomly",
            ),
            *("-q", "-rfE", "--tb=no", *device, *dtype, *defect.arguments),
        ],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.module for defect in DEFECTS])
def test_a_planted_defect_is_noticed(defect: Defect) -> None:
    result = _run(defect)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout + result.stderr
    failed = [line for line in result.stdout.splitlines() if re.match("FAILED |ERROR ", line)]
    assert any(defect.failing in line for line in failed), result.stdout


def test_every_planted_defect_is_in_the_manifest() -> None:
    modules = {path.stem for path in PLANTED.glob("*.py") if not path.stem.startswith("manifest")} - HELPERS
    assert {defect.module for defect in DEFECTS} == modules
