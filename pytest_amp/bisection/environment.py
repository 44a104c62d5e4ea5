"""Temporary environment with one torch release, created for one trial and removed after it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Requirements of an environment besides torch: the ``dependencies`` and the extra ``suites`` of the project. The
#: plugin itself is used from its present folder.
REQUIREMENTS = (
    "expecttest>=0.2",
    "filelock>=3.20.3",
    "hypothesis>=6.100",
    "numpy>=1.26",
    "nvidia-ml-py>=12.535",
    "packaging>=23.2",
    "pytest>=9.0",
    "pytest-benchmark>=5.1",
    "pytest-xdist>=3.6",
    "tomli>=2.0; python_version < '3.11'",
)


class InstallFailed(RuntimeError):
    """Failure to create an environment; the message is one line."""


@dataclass(frozen=True)
class Installer:
    """Installer of environments; ``tool`` is ``uv`` or ``pip``.

    ``wheels`` is a folder with wheels of torch, searched before the index; ``arguments`` are added to each install,
    ``more`` are requirements of the tests that are run; ``python`` is the interpreter.
    """

    tool: str
    wheels: Path | None = None
    arguments: Sequence[str] = ()
    more: Sequence[str] = ()
    python: str = sys.executable

    @classmethod
    def found(cls, *, wheels: Path | None, arguments: Sequence[str], more: Sequence[str]) -> Installer:
        """Choose uv where it is installed, since it links packages from its cache; else pip."""
        return cls("uv" if shutil.which("uv") else "pip", wheels, arguments, more)

    def make(self, release: str, folder: Path, log: Path) -> str:
        """Create an environment with torch ``release`` in ``folder``; return its interpreter. Raises InstallFailed."""
        python = str(folder / "bin" / "python")
        with log.open("a", encoding="utf-8") as output:
            for command in self.commands(release, folder, python):
                output.write(f"+ {shlex.join(command)}\n")
                output.flush()
                try:
                    done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)  # noqa: S603
                except OSError as error:
                    raise InstallFailed(f"{command[0]}: {error.strerror or error}") from error
                if done.returncode:
                    raise InstallFailed(f"{shlex.join(command)[:80]} ended with {done.returncode}; see {log}")
        return python

    def commands(self, release: str, folder: Path, python: str) -> list[list[str]]:
        """Return the commands in order. One install covers all, so that torch's requirements are resolved with it."""
        if self.tool == "uv":
            make = ["uv", "venv", "--quiet", "--clear", "--python", self.python, str(folder)]
            install = ["uv", "pip", "install", "--python", python]
        else:
            make = [self.python, "-m", "venv", "--clear", str(folder)]
            install = [python, "-m", "pip", "install", "--disable-pip-version-check"]
        links = ["--find-links", str(self.wheels.resolve())] if self.wheels is not None else []
        return [make, [*install, *links, *self.arguments, f"torch=={release}", *REQUIREMENTS, *self.more]]
