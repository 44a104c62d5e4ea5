"""Defects on another device, planted by the command for it; here on the CPU."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.planted.table import VARIABLE, Defect, find
from tests.planting import PLUGIN, planting, run
from tools import planted_on_device
from tools.planted_on_device import deselected, main, planted


def test_defect_is_planted_and_detected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["cpu", str(report), "scaler", "scale_never_grows"]) == 0
    (actual,) = json.loads(report.read_text(encoding="utf-8"))
    assert actual["defect"] == "scale_never_grows"
    assert actual["noticed"] is True
    assert (
        actual["test"] == "suites/scaler/test_update_rule.py::test_the_scale_grows_after_exactly_the_interval[cpu-bf16]"
    )
    assert "1 planted, 0 without a test here, unnoticed: none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("layer_norm_low_precision", "cuda", "its test runs on fake:cuda"),
        ("layer_norm_low_precision", "cpu", "its test runs on fake:cuda"),
        ("trace_is_low_on_cuda", "cpu", "its test runs on cuda"),
        ("stft_falls_through", "cuda", "CUDA has no rule for it"),
    ],
)
def test_defect_of_another_device_is_not_planted(tmp_path: Path, name: str, device: str, reason: str) -> None:
    report = tmp_path / "report.json"
    assert main([device, str(report), name]) == 0
    assert json.loads(report.read_text(encoding="utf-8")) == [{"defect": name, "noticed": None, "reason": reason}]


def test_defect_with_a_test_on_cuda_is_planted_there() -> None:
    defect = find("cat_promotes_to_the_first")
    assert defect.unfit("cuda") is None
    assert defect.test_on("cuda") == "suites/rules/test_registered.py::test_no_operator_is_new_or_gone[cuda-bf16]"


def test_defect_is_not_planted_on_an_older_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    entry = planted(find("linear_cross_entropy_is_low_for_some"), "cpu")
    reason = "its test can notice it since torch 2.13, and this is 2.11.0+cu130"
    assert entry == {"defect": "linear_cross_entropy_is_low_for_some", "noticed": None, "reason": reason}


def test_defect_with_a_deselected_test_is_not_planted() -> None:
    test = "rules/test_banned.py::test_it_is_refused_with_the_name_of_the_alternative[cpu-bf16]"
    entry = planted(replace(find("scale_never_grows"), caught_by=test), "cpu")
    assert entry == {
        "defect": "scale_never_grows", "test": f"suites/{test}", "noticed": None, "reason": "not for cpu"
    }  # fmt: skip


def test_defect_with_a_test_of_another_tier_is_not_detected() -> None:
    test = "kernels/test_arguments.py::test_operator_with_arguments[cpu-bf16-softmin]"
    entry = planted(replace(find("scale_never_grows"), caught_by=test), "cpu")
    assert entry["noticed"] is False
    assert "not run   1 (kernels on cpu: long tier (--amp-tier=long))" in str(entry["output"])


TOO_FEW = "not run   1 (needs 2 cuda devices, and there is 1)\n1 deselected in 3.2s\n"


@pytest.mark.parametrize(
    ("status", "output", "reason"),
    [
        (pytest.ExitCode.NO_TESTS_COLLECTED, TOO_FEW, "needs 2 cuda devices, and there is 1"),
        (pytest.ExitCode.OK, TOO_FEW, None),
        (pytest.ExitCode.TESTS_FAILED, TOO_FEW, None),
        (pytest.ExitCode.NO_TESTS_COLLECTED, "not run   1 (speed is off: another process)\n", None),
        (pytest.ExitCode.NO_TESTS_COLLECTED, "1 deselected in 3.2s\n", None),
        (None, TOO_FEW, None),
    ],
    ids=["too few devices", "passed", "failed", "not timed", "by an option", "timeout"],
)
def test_reason_is_read_from_a_run_without_tests(status: int | None, output: str, reason: str | None) -> None:
    assert deselected(status, output) == reason


def test_defects_of_speed_are_planted_alone_and_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[str] = set()
    finished: list[str] = []
    beside: dict[str, set[str]] = {}
    lock = threading.Lock()

    def record(defect: Defect, _device: str) -> dict[str, object]:
        with lock:
            beside[defect.name] = set(running)
            running.add(defect.name)
        time.sleep(0.01)
        with lock:
            running.remove(defect.name)
            finished.append(defect.name)
        return {"defect": defect.name, "noticed": True}

    monkeypatch.setattr(planted_on_device, "planted", record)
    report = tmp_path / "report.json"
    assert main(["cuda", str(report), "memory", "speed"]) == 0
    families = [find(name).family for name in finished]
    assert families.count("speed") >= 2
    assert families == sorted(families)
    assert [beside[name] for name in finished if find(name).family == "speed"] == [set()] * families.count("speed")
    assert [entry["defect"] for entry in json.loads(report.read_text(encoding="utf-8"))][-1] == finished[-1]


def test_defects_break_the_device_that_the_environment_names(tmp_path: Path) -> None:
    source = "import torch\n\n\ndef test_it():\n    assert torch.get_autocast_dtype('cuda') is torch.bfloat16\n"
    (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
    arguments = [*PLUGIN, *planting("default_dtype_changed"), "-q", f"--rootdir={tmp_path}", str(tmp_path)]
    environment = {**os.environ, VARIABLE: "cuda"}
    status, text = run(arguments, tmp_path / "output", timeout=120, environment=environment)
    assert status == pytest.ExitCode.OK, text


def test_unknown_family_or_defect_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["cpu", str(report), "scaler", "scale_never_growz"]) == 1
    assert capsys.readouterr().err == "no planted defect and no family of them: scale_never_growz\n"
    assert not report.exists()
