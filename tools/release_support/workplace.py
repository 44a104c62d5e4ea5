"""Folder of one release: environments, records and proposals, and the finished steps."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]


class StepFailed(Exception):
    """Failure of a step: one line with the reason."""


@dataclass(frozen=True)
class Workplace:
    """Folder in which the support of ``requirement`` (``torch==2.15.0``) is prepared.

    ``root`` is the checkout whose data is to change, ``folder`` the one into which all steps write.
    """

    root: Path
    folder: Path
    requirement: str

    def path(self, name: str) -> Path:
        """Return the path of a file or a folder of this workplace."""
        return self.folder / name

    def done(self) -> dict[str, str]:
        """Return the line of each finished step, by its name, for this requirement only."""
        file = self.path("state.json")
        if not file.is_file():
            return {}
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            steps = {str(name): str(summary) for name, summary in state["steps"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StepFailed(f"{file} cannot be read; remove it to begin anew") from None
        if state.get("requirement") != self.requirement:
            raise StepFailed(f"{self.folder} is of {state.get('requirement')}; name another --folder")
        return steps

    def finish(self, steps: Mapping[str, str]) -> None:
        """Store the lines of the finished steps."""
        text = json.dumps({"requirement": self.requirement, "steps": dict(steps)}, indent=1)
        self.path("state.json").write_text(text + "\n", encoding="utf-8")

    def call(
        self,
        command: Sequence[str],
        *,
        log: str,
        accepted: tuple[int, ...] = (0,),
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a command whose output goes to the file ``log``; return its status.

        Raises StepFailed with the command's last line if the status is not ``accepted``.
        """
        path = self.path(log)
        with path.open("w", encoding="utf-8") as file:
            file.write(f"+ {shlex.join(command)}\n")
            file.flush()
            status = subprocess.run(
                command, cwd=cwd or self.root, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False
            ).returncode
        if status not in accepted:
            lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
            raise StepFailed(f"{lines[-1].strip()[:200]} (status {status}; all of it in {path})")
        return status


def say(text: str) -> None:
    """Write a line to the terminal, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
