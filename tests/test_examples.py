"""The examples run as they stand, in both dtypes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.project import INSTALLED, ROOT

EXAMPLES = sorted((ROOT / "examples").glob("test_*.py"))


@pytest.mark.parametrize("path", [*EXAMPLES, ROOT / "examples"], ids=lambda path: path.stem)
def test_an_example_runs(path: object) -> None:
    loaded = () if INSTALLED else ("-p", "pytest_amp.plugin")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *loaded, "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
            *("--amp-device=cpu", "--amp-dtype=all", str(path)),
        ],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"\d+ passed", result.stdout)


def test_there_are_a_decoder_and_a_cnn() -> None:
    assert [path.name for path in EXAMPLES] == ["test_decoder.py", "test_resnet.py"]
