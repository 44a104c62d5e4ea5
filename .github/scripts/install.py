"""Install torch, pytest and this checkout into the running interpreter, as a job of the matrix asks for it.

What is wanted is in the environment, so that no text of a workflow is ever pasted into a shell:
``TORCH`` and ``PYTEST`` (requirements; empty for what the project's own files say), ``TORCH_INDEX`` (the index that
has that torch, for builds that the default one lacks), ``EXTRAS`` and ``GROUPS`` (comma lists of pyproject.toml).
``--dry-run`` prints the commands.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: The checkout of the job. The action that calls this may have been fetched to another place.
ROOT = Path(os.environ.get("GITHUB_WORKSPACE") or Path(__file__).resolve().parents[2])


def commands(expected: Mapping[str, str], python: str) -> list[list[str]]:
    """The calls of pip, in turn. Torch comes first: the checkout then finds its requirement met."""
    pip = [python, "-m", "pip", "install"]
    torch = shlex.split(expected.get("TORCH", "")) or ["--constraint", str(ROOT / "constraints.txt"), "torch"]
    if "nightly" in expected.get("TORCH_INDEX", ""):
        torch = ["--pre", *torch]
    if expected.get("TORCH_INDEX"):
        torch = ["--index-url", expected["TORCH_INDEX"], *torch]
    extras = f"[{expected['EXTRAS']}]" if expected.get("EXTRAS") else ""
    groups = [f"--group={ROOT / 'pyproject.toml'}:{name}" for name in expected.get("GROUPS", "").split(",") if name]
    actual = [[*pip, "--upgrade", "pip>=25.1"], [*pip, *torch], [*pip, "--editable", f"{ROOT}{extras}", *groups]]
    if expected.get("PYTEST"):
        actual.append([*pip, *shlex.split(expected["PYTEST"])])
    return actual


def main(arguments: list[str]) -> int:
    """Run the commands, and end with the status of the first that fails."""
    for command in commands(os.environ, sys.executable):
        sys.stdout.write(f"+ {shlex.join(command)}\n")
        sys.stdout.flush()
        if arguments != ["--dry-run"]:
            status = subprocess.run(command, check=False).returncode
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
