"""The action amp-gate: its inputs are documented and read, and its steps match their descriptions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp.record import read_record
from tests.project import INSTALLED, ROOT
from tests.workflows.scripts import ACTION, script

GATE = ACTION / "gate.py"


def _environment(folder: Path, **inputs: str) -> dict[str, str]:
    retained = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CUDA_", "GITHUB_"))}
    retained |= {"RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(folder / "output"), "PYTHONPATH": str(ROOT)}
    return retained | {f"AMP_GATE_{name.upper()}": value for name, value in inputs.items()}


def test_inputs_are_passed_to_every_step_and_documented() -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is in the dependency group test")
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "how-to" / "gate-pull-requests.md").read_text(encoding="utf-8")
    assert all(entry["description"] for entry in action["inputs"].values())
    assert [name for name in action["inputs"] if f"| `{name}` |" not in page] == []
    handed = {f"AMP_GATE_{name.upper().replace('-', '_')}" for name in action["inputs"]} - {"AMP_GATE_RETENTION_DAYS"}
    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert [step["run"].split()[-1] for step in steps] == ["install", "doctor", "run"]
    assert [set(step["env"]) for step in steps] == [handed] * 3
    assert "always()" in action["runs"]["steps"][-1]["if"]


def test_install_step_has_its_commands(tmp_path: Path) -> None:
    module = script("gate", ACTION)
    action_inputs = {"torch": "torch==2.13.0", "requirements": "-r needs.txt", "name": "a", "python": "python3.12"}
    inputs = module.Inputs(_environment(tmp_path, **action_inputs))
    commands = module.install_commands(inputs)
    python = str(tmp_path / "amp-gate-a" / "venv" / "bin" / "python")
    assert commands[0] == ["python3.12", "-m", "venv", "--clear", str(tmp_path / "amp-gate-a" / "venv")]
    assert [command[4:] for command in commands[2:]] == [["torch==2.13.0"], [f"{ROOT}[suites]"], ["-r", "needs.txt"]]
    assert {command[0] for command in commands[1:]} == {python} == {inputs.python}
    assert module.install_commands(module.Inputs(_environment(tmp_path, environment="none"))) == []


@pytest.mark.parametrize(("assertion", "status"), [("True", 0), ("False", 1)])
def test_run_step_writes_reports_and_status(tmp_path: Path, assertion: str, status: int) -> None:
    tests = tmp_path / "test_it.py"
    tests.write_text(f"def test_it(amp):\n    amp.observe('x', 1, kind='count')\n    assert {assertion}\n")
    plugin = "" if INSTALLED else "-p pytest_amp.plugin "
    arguments = {"environment": "none", "python": sys.executable, "device": "cpu", "dtype": "bf16"}
    environment = _environment(tmp_path, **arguments, tests=str(tests), args=f"{plugin}-p no:cacheprovider -q")
    environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "page")
    (tmp_path / "page").touch()
    for _ in range(2):  # a job can run again, and finds the files of the first run
        done = subprocess.run([sys.executable, str(GATE), "run"], cwd=tmp_path, env=environment, check=False)
        assert done.returncode == status
    reports = tmp_path / "amp-gate-gate" / "reports"
    assert list(read_record(reports / "record.json").by_key()) == ["project/cpu/bf16/x"]
    assert (reports / "junit.xml").is_file()
    assert (reports / "report.md").is_file()
    assert "cpu-bf16" in (tmp_path / "page").read_text(encoding="utf-8")
    assert f"status={status}" in (tmp_path / "output").read_text(encoding="utf-8").splitlines()


def test_absent_device_is_red(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(amp):\n    pass\n")
    plugin = "" if INSTALLED else "-p pytest_amp.plugin "
    inputs = {"environment": "none", "python": sys.executable, "device": "cuda", "args": f"{plugin}-q"}
    environment = {**_environment(tmp_path, **inputs, tests="test_it.py"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(GATE), "run"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 4


def test_doctor_step_passes_and_unknown_step_is_refused(tmp_path: Path) -> None:
    environment = _environment(tmp_path, environment="none", python=sys.executable)
    done = subprocess.run([sys.executable, str(GATE), "doctor"], env=environment, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"torch" in done.stdout
    done = subprocess.run([sys.executable, str(GATE), "else"], env=environment, capture_output=True, check=False)
    assert done.returncode == 2
