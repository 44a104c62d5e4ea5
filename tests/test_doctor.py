"""``pytest-amp doctor``: without torch, with a broken one, with a device that ends or hangs its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_amp import cli
from pytest_amp.cli import doctor, machine
from pytest_amp.cli.machine import Machine
from pytest_amp.rules.spec import load_spec
from tests.project import ROOT

WORKS = {"bf16": "", "fp16": ""}


def run(*arguments: str, path: Path | None = None, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own; ``path`` is searched first for modules."""
    inherited = os.environ.get("PYTHONPATH", "")
    before = os.pathsep.join([*([str(path)] if path else []), str(ROOT), inherited]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, "-m", "pytest_amp", "doctor", *arguments],
        env={**os.environ, "PYTHONPATH": before, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_doctor_reports_this_machine() -> None:
    import torch

    result = run()
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[1].startswith(f"torch {torch.__version__} (")
    assert any(line.startswith("  cpu: ") and line.endswith("; bf16, fp16") for line in lines)
    assert "  fake:cuda: fake tensors, cuda rules; bf16, fp16" in lines
    assert any(line.startswith("  pytest suites: cpu in bf16,fp16 (--amp-device=auto)") for line in lines)
    data = json.loads(run("--format=json").stdout)
    assert data["torch"]["version"] == torch.__version__
    assert data["devices"]["cpu"]["dtypes"] == WORKS
    assert data["devices"]["cpu"]["provenance"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert data["parts"]["pytest"] == pytest.__version__


def test_torch_newer_than_the_data_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = {"version": "9.9.0+cpu", "cuda": None, "hip": None, "file": "torch.py", "accelerator": None}
    monkeypatch.setattr(doctor, "ask", lambda: Machine(torch=torch))
    says = f"torch 9.9 is newer than what this version knows ({load_spec().last}): pip install --upgrade pytest-amp"
    cli.main(["doctor"])
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(says)]
    cli.main(["doctor", "--format=json"])
    assert json.loads(capsys.readouterr().out)["newer"].startswith(says)
    monkeypatch.setattr(doctor, "ask", lambda: Machine(torch={**torch, "version": f"{load_spec().last}.7"}))
    cli.main(["doctor", "--format=json"])
    assert json.loads(capsys.readouterr().out)["newer"] is None


@pytest.mark.parametrize(
    ("source", "says", "advice"),
    [
        (
            "raise ModuleNotFoundError(\"No module named 'torch'\")",
            "torch cannot be imported: ModuleNotFoundError: No module named 'torch'",
            "  torch, for every run: pip install torch",
        ),
        (
            "raise OSError('libcudart.so.13: cannot open shared object file')",
            "torch cannot be imported: OSError: libcudart.so.13: cannot open shared object file",
            "  a torch that can be imported ({file}: OSError: libcudart.so.13: cannot open shared object file): pip ",
        ),
        (
            "import os\nos.abort()",
            "torch cannot be imported: the process ended with -6: ",
            "  a torch that can be imported ({file}: the process ended with -6: ",
        ),
        (
            "import sys\nsys.exit('wrong CPU')",
            "torch cannot be imported: SystemExit: wrong CPU",
            "  a torch that can be imported ({file}: SystemExit: wrong CPU): pip install --force-reinstall torch",
        ),
        (
            "__version__ = '9.9'",
            "torch cannot be imported: the process ended with 1: ",
            "  a torch that can be imported ({file}: the process ended with 1: ",
        ),
    ],
    ids=["none", "broken", "aborts", "exits", "hollow"],
)
def test_torch_that_cannot_be_imported_is_reported(tmp_path: Path, source: str, says: str, advice: str) -> None:
    file = tmp_path / "torch.py"
    file.write_text(source, encoding="utf-8")
    result = run(path=tmp_path)
    assert (result.returncode, result.stderr) == (1, "")
    lines = result.stdout.splitlines()
    assert lines[1].startswith(says)
    assert any(line.startswith(advice.format(file=file)) for line in lines), lines
    assert "  nothing: torch computes on no device of this machine" in lines
    assert json.loads(run("--format=json", path=tmp_path).stdout)["devices"] == {}


def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Replace the program of the child process."""
    file = tmp_path / "child.py"
    file.write_text(program, encoding="utf-8")
    monkeypatch.setattr(machine, "__name__", "child")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


SAYS = """
import json, os, sys, time
def say(**said):
    os.write(1, (json.dumps(said) + chr(10)).encode())
print("noise")
say(amp="begins", name="import torch", value=None)
torch = {"version": "2.13.0", "file": "x", "accelerator": "cuda", "cuda": "13.0", "hip": None}
say(amp="torch", name="torch", value=torch)
say(amp="begins", name="cpu", value=None)
say(amp="device", name="cpu", value={"describe": "x86_64", "provenance": {}, "dtypes": {"bf16": "", "fp16": "slow"}})
say(amp="begins", name="cuda", value=None)
"""


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ("os.kill(os.getpid(), 11)", "the process ended with -11: no message"),
        (
            "sys.exit('CUDA error: an illegal memory access')",
            "the process ended with 1: CUDA error: an illegal memory access",
        ),
        ("time.sleep(60)", "no answer within 3 s"),
    ],
    ids=["dies", "ends", "hangs"],
)
def test_device_that_ends_its_process_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, problem: str
) -> None:
    child(monkeypatch, tmp_path, SAYS + end)
    actual = machine.ask(timeout=3.0)
    assert (actual.problem, actual.at, list(actual.devices)) == (problem, "cuda", ["cpu"])
    lines = doctor._lines(actual, {part.name: "1.0" for part in doctor.PARTS}, "/usr/bin/c++")
    assert "  cpu: x86_64; bf16" in lines
    assert "    not fp16: slow" in lines
    assert lines[-1] == f"  a probe of cuda: {problem}; a run on it would fail in the same way"


def advice(parts: dict[str, str | None] | None = None, compiler: str | None = "c++", **torch: Any) -> list[str]:
    torch_facts = {"version": "2.13.0+cpu", "file": "x", "accelerator": None, "cuda": None, "hip": None, **torch}
    versions = {part.name: "1.0" for part in doctor.PARTS} | (parts or {})
    return doctor.advice(machine.Machine(torch=torch_facts), versions, compiler)


def test_advice_names_missing_parts_and_their_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert advice() == []
    assert advice({"nvidia-ml-py": None}) == []
    assert advice({"hypothesis": None, "jinja2": None}) == [
        "hypothesis, for random programs (semantics, scaler): pip install 'pytest-amp[suites]'",
        "jinja2, for HTML reports: pip install 'pytest-amp[html]'",
    ]
    assert advice(compiler=None) == ["a C++ compiler, for torch.compile on a CPU: apt install g++ (or your system's)"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (line,) = advice()
    assert line.startswith(
        "a torch that computes on the GPU which the driver shows: this is 2.13.0+cpu (built without "
    )
    assert advice(accelerator="cuda", cuda="13.0") == []
    assert advice({"nvidia-ml-py": None}, accelerator="cuda", cuda="13.0") == [
        "nvidia-ml-py, for the driver's version, heat and processes of a GPU: pip install 'pytest-amp[gpu]'"
    ]
    assert advice({"nvidia-ml-py": None}, accelerator="cuda", hip="6.4") == []


def test_wrong_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_amp import cli

    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--format=html"])
    assert ended.value.code == 2
    assert "invalid choice: 'html'" in capsys.readouterr().err
