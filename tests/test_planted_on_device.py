"""Defects are planted on another device by the command that is for it; here on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planted_on_device import main


def test_a_defect_is_planted_and_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["cpu", str(report), "scaler", "scale_never_grows"]) == 0
    (found,) = json.loads(report.read_text(encoding="utf-8"))
    assert found["defect"] == "scale_never_grows"
    assert found["noticed"] is True
    assert (
        found["test"] == "suites/scaler/test_update_rule.py::test_the_scale_grows_after_exactly_the_interval[cpu-bf16]"
    )
    assert "1 planted, unnoticed: none" in capsys.readouterr().out


def test_a_word_that_is_neither_family_nor_defect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["cpu", str(report), "scaler", "scale_never_growz"]) == 1
    assert capsys.readouterr().err == "no planted defect and no family of them on cpu: scale_never_growz\n"
    assert not report.exists()
