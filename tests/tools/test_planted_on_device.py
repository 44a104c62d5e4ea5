"""Defects on another device, planted by the command for it; here on the CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.planted.table import VARIABLE
from tests.planting import PLUGIN, planting, run
from tools.planted_on_device import main


def test_a_defect_is_planted_and_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["cpu", str(report), "scaler", "scale_never_grows"]) == 0
    (actual,) = json.loads(report.read_text(encoding="utf-8"))
    assert actual["defect"] == "scale_never_grows"
    assert actual["noticed"] is True
    assert (
        actual["test"] == "suites/scaler/test_update_rule.py::test_the_scale_grows_after_exactly_the_interval[cpu-bf16]"
    )
    assert "1 planted, unnoticed: none" in capsys.readouterr().out


def test_defects_break_the_device_that_the_environment_names(tmp_path: Path) -> None:
    source = "import torch\n\n\ndef test_it():\n    assert torch.get_autocast_dtype('cuda') is torch.bfloat16\n"
    (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
    arguments = [*PLUGIN, *planting("default_dtype_changed"), "-q", f"--rootdir={tmp_path}", str(tmp_path)]
    environment = {**os.environ, VARIABLE: "cuda"}
    status, text = run(arguments, tmp_path / "output", timeout=120, environment=environment)
    assert status == pytest.ExitCode.OK, text


def test_a_word_that_is_neither_family_nor_defect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["cpu", str(report), "scaler", "scale_never_growz"]) == 1
    assert capsys.readouterr().err == "no planted defect and no family of them on cpu: scale_never_growz\n"
    assert not report.exists()
