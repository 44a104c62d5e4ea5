"""The steps of the action amp-gate: ``python gate.py install | doctor | run``.

Each reads the action's inputs from the environment (``AMP_GATE_DEVICE`` for ``device``), so that none is pasted into a
shell. ``install`` makes a virtual environment unless ``environment`` is ``none``; ``run`` writes the record, JUnit,
Markdown, and the page of the job, and ends with pytest's own status.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: The repository of this action, at the commit that the workflow names.
ROOT = Path(__file__).resolve().parents[3]
#: Inputs that become options of pytest where they are given.
OPTIONS = ("device", "dtype", "baseline", "known", "speed", "tier", "allow-missing")


class Inputs:
    """The action's inputs, by the names that action.yml has."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """``environment`` is the process's."""
        self._environment = environment

    def __getitem__(self, name: str) -> str:
        """The value of an input, empty where it was not given."""
        return self._environment.get(f"AMP_GATE_{name.upper().replace('-', '_')}", "").strip()

    @property
    def folder(self) -> Path:
        """Folder of the environment and the reports: one for each use of the action in a job."""
        return Path(self._environment.get("RUNNER_TEMP", "."), f"amp-gate-{self['name'] or 'gate'}").resolve()

    @property
    def reports(self) -> Path:
        """Return the files to upload."""
        return self.folder / "reports"

    @property
    def python(self) -> str:
        """The interpreter in which the gate runs."""
        return (
            self["python"] or sys.executable if self["environment"] == "none" else str(self.folder / "venv/bin/python")
        )


def install_commands(inputs: Inputs) -> list[list[str]]:
    """A virtual environment with torch, the plugin, and what the project itself needs; nothing for ``none``."""
    if inputs["environment"] == "none":
        return []
    pip = [inputs.python, "-m", "pip", "install"]
    index = ["--index-url", inputs["torch-index"]] if inputs["torch-index"] else []
    pre = ["--pre"] if "nightly" in inputs["torch-index"] else []
    actual = [[inputs["python"] or sys.executable, "-m", "venv", "--clear", str(inputs.folder / "venv")]]
    actual.append([*pip, "--upgrade", "pip>=25.1"])
    if inputs["torch"]:
        actual.append([*pip, *pre, *index, *shlex.split(inputs["torch"])])
    actual.append([*pip, *(shlex.split(inputs["package"]) or [f"{ROOT}[suites]"])])
    if inputs["requirements"]:
        actual.append([*pip, *shlex.split(inputs["requirements"])])
    return actual


def run_command(inputs: Inputs) -> list[str]:
    """The run of pytest."""
    options = [f"--amp-{name}={inputs[name]}" for name in OPTIONS if inputs[name]]
    reports = inputs.reports
    written = [f"--amp-record={reports / 'record.json'}", f"--amp-report=md:{reports / 'report.md'}"]
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        written.append("--amp-report=github")
    written += [f"--junitxml={reports / 'junit.xml'}", "-rfE"]
    tests = shlex.split(inputs["tests"] or "--pyargs pytest_amp.suites")
    return [inputs.python, "-m", "pytest", *tests, *options, *written, *shlex.split(inputs["args"])]


def call(command: list[str]) -> int:
    """Show a command and run it; its status."""
    sys.stdout.write(f"+ {shlex.join(command)}\n")
    sys.stdout.flush()
    return subprocess.run(command, check=False).returncode


def tell(name: str, value: str) -> None:
    """An output of the step."""
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"{name}={value}\n")


def main(arguments: list[str]) -> int:
    """One step."""
    inputs = Inputs(os.environ)
    inputs.folder.mkdir(parents=True, exist_ok=True)
    if arguments == ["install"]:
        return next((status for command in install_commands(inputs) if (status := call(command))), 0)
    if arguments == ["doctor"]:
        return call([inputs.python, "-m", "pytest_amp", "doctor"])
    if arguments == ["run"]:
        inputs.reports.mkdir(exist_ok=True)
        (inputs.reports / "record.json").unlink(
            missing_ok=True
        )  # a record is a new file; a rerun of the job has an old one
        tell("reports", str(inputs.reports))
        status = call(run_command(inputs))
        tell("status", str(status))
        return status
    sys.stderr.write("usage: gate.py install | doctor | run\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
