"""The examples run unchanged, in both dtypes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.project import INSTALLED, ROOT

EXAMPLES = sorted((ROOT / "examples").glob("test_*.py"))


@pytest.mark.parametrize("path", [*EXAMPLES, ROOT / "examples"], ids=lambda path: path.stem)
def test_example_passes(path: object) -> None:
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


def test_examples_are_a_decoder_and_a_cnn() -> None:
    assert [path.name for path in EXAMPLES] == ["test_decoder.py", "test_resnet.py"]


def test_example_project_passes_with_a_conftest_of_twenty_lines() -> None:
    """Run the project in its own folder, then the gradient suite with its case."""
    folder = ROOT / "examples" / "project"
    lines = (folder / "conftest.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 20
    loaded = () if INSTALLED else ("-p", "pytest_amp.plugin")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_"))}
    environment |= {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", *loaded, "-q", "-p", "no:cacheprovider", "--amp-device=cpu"]
    for arguments in (
        ("--amp-dtype=all", "--rootdir=."),
        ("--amp-dtype=bf16", "-k", "classifier", str(ROOT / "suites/gradients/test_zoo.py"), "-p", "conftest"),
    ):
        path = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])} if "-p" in arguments else {}
        result = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            env={**environment, **path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
