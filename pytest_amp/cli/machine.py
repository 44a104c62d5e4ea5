"""Facts about this machine, from a child process: ``python -m pytest_amp.cli.machine PATH`` (``sys.path`` as JSON).

torch may be missing or broken, or crash the process that imports it, and a device may crash or hang the process that
first uses it. The child prints each fact as a line of JSON at once, so that a crash loses none of the earlier facts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from pytest_amp.text.quoted import quoted_with_type

#: Seconds: importing torch from a cold disk and creating a CUDA context may take most of a minute.
TIMEOUT = 180.0


@dataclass
class Machine:
    """Facts from the child: those of torch, and the results of probing by the name of the device.

    ``problem`` describes in one line how the child failed, and ``at`` names the step in which it did; None otherwise.
    """

    torch: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str | None = None
    at: str | None = None


def ask(timeout: float = TIMEOUT) -> Machine:
    """Return the facts that a child process reports; never raises."""
    command = [sys.executable, "-m", __name__, json.dumps(sys.path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)  # noqa: S603  # this package
        output, status = done.stdout, done.returncode
        errors = done.stderr.decode("utf-8", errors="replace").strip().splitlines()
        problem = f"the process ended with {status}: {errors[-1] if errors else 'no message'}" if status else None
    except subprocess.TimeoutExpired as expired:
        output, problem = expired.stdout or b"", f"no answer within {timeout:.0f} s"
    except OSError as error:
        output, problem = b"", str(error)
    machine = Machine(problem=problem)
    for line in output.decode("utf-8", errors="replace").splitlines():
        _take_in(machine, line)
    if problem is None:
        machine.at = None
    return machine


def _take_in(machine: Machine, line: str) -> None:
    """Add the fact in a line of the child's output to ``machine``; a line of any other form is ignored."""
    try:
        message = json.loads(line)
        kind, name, value = message["amp"], message["name"], message["value"]
    except (ValueError, LookupError, TypeError):
        return
    if kind == "torch":
        machine.torch = value
    elif kind == "device":
        machine.devices[name] = value
    machine.at = name if kind == "begins" else None


def _say(kind: str, name: str, value: object = None) -> None:
    # One unbuffered write: output of a library cannot split the line, and a crash cannot lose it.
    os.write(1, f"\n{json.dumps({'amp': kind, 'name': name, 'value': value})}\n".encode())


def main(path: str) -> None:
    """Import torch, then probe the CPU, the accelerator and the fake devices; runs in the child."""
    sys.path[:] = json.loads(path)
    _say("begins", "import torch")
    try:
        import torch

        version = str(torch.__version__)
    except BaseException as error:  # noqa: BLE001  # a broken library may raise anything
        reason = quoted_with_type(error, 300)
        file = getattr(sys.modules.get("torch"), "__file__", None)
        _say("torch", "torch", {"problem": reason, "file": file})
        return
    from pytest_amp.devices import FAKE_TYPES
    from pytest_amp.devices.probe import current_accelerator

    accelerator = current_accelerator()
    _say("torch", "torch", {"version": version, "file": torch.__file__, "accelerator": accelerator, **_build()})
    names = ["cpu", *([accelerator] if accelerator else []), *(f"fake:{name}" for name in FAKE_TYPES)]
    for name in names:
        _say("begins", name)
        _say("device", name, _device(name))


def _build() -> dict[str, Any]:
    import torch

    return {"git": str(torch.version.git_version), "cuda": torch.version.cuda, "hip": torch.version.hip}


def _device(name: str) -> dict[str, Any]:
    from pytest_amp.devices import find_device
    from pytest_amp.devices.probe import probe

    device = find_device(name)
    answers = dict(probe(device).answers)
    works = not all(answers.values())
    return {
        "describe": device.describe() if works else None,
        "provenance": dict(device.provenance()) if works else {},
        "dtypes": answers,
    }


if __name__ == "__main__":
    main(sys.argv[1])
