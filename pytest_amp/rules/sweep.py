"""Where the checks of an operator run: here, or in a child process that an operator may bring down.

On an accelerator one bad kernel poisons the whole process. There each operator is examined in a child,
which is started again after it dies: that costs one operator, which is named.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Protocol

from pytest_amp.devices import Device, DeviceKind, find_device
from pytest_amp.rules import checks
from pytest_amp.rules.child import POISONED

if TYPE_CHECKING:
    import torch

#: What a child calls to examine an operator.
EXAMINER = "pytest_amp.rules.checks:examine"


class ExaminationFailed(Exception):
    """An operator could not be examined: it raised, it took the process with it, or it never ended."""


class Sweep(Protocol):
    """Examines operators on one device."""

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """What ``pytest_amp.rules.checks.examine`` gives; raises ExaminationFailed."""

    def close(self) -> None:
        """End it; raises ExaminationFailed if the process that it used does not end well."""


def open_sweep(
    device: Device, *, modules: Sequence[str] = (), path: Sequence[str] = (), timeout: float = 300.0
) -> Sweep:
    """A sweep on ``device``: in this process, or for an accelerator in a child process.

    The child has ``path`` as its module search path and imports ``modules`` before torch. Examining
    one operator may take ``timeout`` seconds. A device that a hook made exists in this process only.
    """
    if device.kind is DeviceKind.ACCELERATOR and type(device) is type(find_device(device.name)):
        return ChildSweep(device.name, modules=modules, path=path, timeout=timeout)
    return InProcessSweep(device)


class InProcessSweep:
    """Examines operators in this process."""

    def __init__(self, device: Device) -> None:
        """``device`` is a CPU or a fake device."""
        self._device = device

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """See Sweep."""
        try:
            return checks.examine(check, overload, self._device, dtype)
        except LookupError as error:
            raise ExaminationFailed(f"{overload}: {error}") from None

    def close(self) -> None:
        """Nothing to end."""


class ChildSweep:
    """Examines operators in a child process, and in another one after the first has died."""

    def __init__(
        self,
        device: str,
        *,
        modules: Sequence[str] = (),
        path: Sequence[str] = (),
        examiner: str = EXAMINER,
        timeout: float = 300.0,
    ) -> None:
        """``device`` is a device's name; ``examiner`` a ``module:function`` in place of checks.examine."""
        self._settings = json.dumps({"device": device, "modules": list(modules), "examiner": examiner})
        self._path = [entry for entry in path if entry]
        self._timeout = timeout
        self._child: _Child | None = None
        self._cannot_start: str | None = None
        #: How often a child was started.
        self.starts = 0

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """See Sweep. A child that dies, or whose device no longer answers, is replaced for the next operator."""
        request = {"check": check, "overload": overload, "dtype": str(dtype).removeprefix("torch.")}
        child = self._running()
        try:
            answer = child.ask(request, self._timeout)
        except _Died as death:
            self._child = None
            raise ExaminationFailed(f"the process that examined {overload} {death}") from None
        if "poisoned" in answer:
            self._child = None
            child.end(self._timeout)
            raise ExaminationFailed(f"the device no longer answered after {overload}: {answer['poisoned']}")
        if "error" in answer:
            raise ExaminationFailed(f"{overload}: {answer['error']}")
        value: dict[str, Any] = answer["value"]
        return value

    def close(self) -> None:
        """End the child; raises ExaminationFailed if it does not end with status 0."""
        child, self._child = self._child, None
        if child is None:
            return
        status = child.end(self._timeout)
        if status != 0:
            raise ExaminationFailed(f"after all its work the process that examined operators {_ending(status, child)}")

    def _running(self) -> _Child:
        if self._cannot_start is not None:
            raise ExaminationFailed(self._cannot_start)
        if self._child is None:
            self.starts += 1
            child = _Child(self._settings, self._path)
            try:
                child.wait_until_ready(self._timeout)
            except _Died as death:
                self._cannot_start = f"the process that examines operators {death} before it was ready"
                raise ExaminationFailed(self._cannot_start) from None
            self._child = child
        return self._child


class _Died(Exception):
    """How a child ended."""


class _Child:
    """A running child, its pipes, and a thread that reads its answers."""

    def __init__(self, settings: str, path: Sequence[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)} if path else None
        self._process = subprocess.Popen(  # noqa: S603  # this interpreter and this package
            [sys.executable, "-m", "pytest_amp.rules.child", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_until_ready(self, timeout: float) -> None:
        """Raises _Died if it ends first."""
        self._next_line(timeout)

    def ask(self, request: dict[str, str], timeout: float) -> dict[str, Any]:
        """Its answer; raises _Died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise _Died(_ending(self.end(timeout), self)) from None
        answer: dict[str, Any] = json.loads(self._next_line(timeout))
        return answer

    def _next_line(self, timeout: float) -> str:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            self._process.kill()
            self.end(timeout)
            raise _Died(f"did not answer within {timeout:g} s and was killed") from None
        if line is None:
            raise _Died(_ending(self.end(timeout), self))
        return line

    def end(self, timeout: float) -> int:
        """Close its input, wait for it, and return its exit status."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            self._process.stdin.close()
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((" ".join(line.split())[:200] for line in reversed(lines) if line.strip()), "")


def _ending(status: int, child: _Child) -> str:
    words = child.last_words()
    said = f", saying: {words}" if words else ""
    if status == POISONED:
        return f"left a device that no longer answers{said}"
    if status < 0:
        return f"died of {signal.Signals(-status).name}{said}"
    return f"ended with status {status}{said}"
