"""Build the wheel, and try it as a stranger would: installed by one tool into an empty environment, in an empty folder.

``python try_wheel.py pip`` (or ``uv``, ``pipx``): collects every suite and runs a few of their checks on the CPU.
``TORCH`` and ``TORCH_INDEX`` as for install.py. ``LOWEST=1`` with uv installs the lowest supported release of each
dependency of the project first: they are read from pyproject.toml, since those of a wheel are indirect ones to uv.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("pip", "uv", "pipx")
CHECKS = "test_rule and (relu or softmax or linear)"


def run(command: list[str], folder: Path, **environment: str) -> None:
    """Run a command that must succeed."""
    sys.stdout.write(f"+ {shlex.join(command)}\n")
    sys.stdout.flush()
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, **environment})


def install(tool: str, wheel: Path, folder: Path) -> list[str]:
    """Install ``wheel`` with its extra ``suites``; the command that is pytest there."""
    index = os.environ.get("TORCH_INDEX", "")
    torch = shlex.split(os.environ.get("TORCH", "")) or ["torch"]
    expected = f"{wheel}[suites]"
    if tool == "pipx":
        flags = ["--pip-args", f"--extra-index-url {index}"] if index else []
        run(
            ["pipx", "install", *flags, expected],
            folder,
            PIPX_HOME=str(folder / "pipx"),
            PIPX_BIN_DIR=str(folder / "bin"),
        )
        run([str(folder / "bin" / "pytest-amp"), "--version"], folder)
        return [str(folder / "pipx" / "venvs" / "pytest-amp" / "bin" / "python"), "-m", "pytest"]
    python = str(folder / "venv" / "bin" / "python")
    if tool == "uv":
        run(["uv", "venv", "--python", sys.executable, str(folder / "venv")], folder)
        pip = ["uv", "pip", "install", "--python", python]
    else:
        run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
        pip = [python, "-m", "pip", "install"]
    if os.environ.get("LOWEST"):
        project = ["-r", str(ROOT / "pyproject.toml"), "--extra", "suites"]
        run([*pip, "--resolution", "lowest-direct", *project], folder)
        torch = []
    elif index:
        run([*pip, "--index-url", index, *torch], folder)
        torch = []
    run([*pip, expected, *torch], folder)
    return [python, "-m", "pytest"]


def main(arguments: list[str]) -> int:
    """Build, install, collect, run."""
    if len(arguments) != 1 or arguments[0] not in TOOLS:
        sys.stderr.write(f"usage: try_wheel.py {'|'.join(TOOLS)}\n")
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)], folder)
        (wheel,) = (folder / "dist").glob("*.whl")
        pytest = install(arguments[0], wheel, folder)
        empty = folder / "empty"
        empty.mkdir()
        suites = [*pytest, "-q", "--pyargs", "pytest_amp.suites", "--amp-device=cpu"]
        run([*suites, "--collect-only", "-qq"], empty)
        run([*suites, "-k", CHECKS], empty)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
