"""Process that answers requests, and is replaced after it has died."""

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
from collections.abc import Mapping, Sequence
from typing import IO, Any

from pytest_amp.child_process.poison import POISONED
from pytest_amp.devices.faults import fault_of_text


class ExaminationFailed(Exception):
    """Failure of an examination: it raised, crashed the process, or never ended."""


class ProcessLost(ExaminationFailed):
    """Crash of the process or the device, or an endless examination; ``how`` says which, as a clause."""

    def __init__(self, message: str, how: str) -> None:
        """Keep the clause ``how``, which follows the name of the examined operator: ``died of SIGSEGV``."""
        super().__init__(message)
        self.how = how


class Isolated:
    """Client of a child process, which is replaced after it has died."""

    def __init__(
        self, examiner: str, *, modules: Sequence[str] = (), path: Sequence[str] = (), timeout: float = 300.0
    ) -> None:
        """Configure the child; ``examiner`` is a ``module:function`` of a request and its device.

        Its answer must be JSON values. The child has ``path`` as its module search path and imports ``modules`` before
        torch. One request may take ``timeout`` seconds.
        """
        self._settings = json.dumps({"modules": list(modules), "examiner": examiner})
        self._path = [entry for entry in path if entry]
        self.timeout = timeout
        self._child: _Child | None = None
        self._cannot_start: str | None = None
        #: Number of times that a child was started.
        self.starts = 0

    def ask(self, request: Mapping[str, Any], name: str) -> Any:
        """Return the examiner's answer to ``request``, whose ``device`` is a device's name; ``name`` is for messages.

        Raises ProcessLost if the child died or its device no longer answers, and ExaminationFailed for an error of the
        examiner, or if no child can be started.
        """
        child = self._running()
        try:
            answer = child.ask(request, self.timeout)
        except _Died as death:
            self._child = None
            raise ProcessLost(f"the process that examined {name} {death}", str(death)) from None
        if "poisoned" in answer:
            self._child = None
            child.end(self.timeout)
            reason = answer["poisoned"]
            fault = fault_of_text(reason)
            if fault is not None:  # of the machine: a new process would meet it, too
                self._cannot_start = f"{fault.about(str(request['device']))} for the process of {name}: {fault.text}"
                raise ExaminationFailed(self._cannot_start)
            raise ProcessLost(f"the device no longer answered after {name}: {reason}", f"poisoned the device: {reason}")
        if "error" in answer:
            raise ExaminationFailed(f"{name}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        """End the child; raises ExaminationFailed if it does not end with status 0."""
        child, self._child = self._child, None
        if child is None:
            return
        status = child.end(self.timeout)
        if status != 0:
            raise ExaminationFailed(f"after all its work the process that examined operators {_ending(status, child)}")

    def _running(self) -> _Child:
        if self._cannot_start is not None:
            raise ExaminationFailed(self._cannot_start)
        if self._child is None:
            self.starts += 1
            child = _Child(self._settings, self._path)
            try:
                child.wait_until_ready(self.timeout)
            except _Died as death:
                self._cannot_start = f"the process that examines operators {death} before it was ready"
                raise ExaminationFailed(self._cannot_start) from None
            self._child = child
        return self._child


class _Died(Exception):
    """End of a child; the message says how it ended."""


class _Child:
    """Running child, its pipes, and a thread that reads its answers."""

    def __init__(self, settings: str, path: Sequence[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)} if path else None
        self._process = subprocess.Popen(  # noqa: S603  # this interpreter and this package
            [sys.executable, "-m", "pytest_amp.child_process.child", settings],
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
        """Wait until the child is ready. Raises _Died if it ends first."""
        self._next_line(timeout)

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the child's answer. Raises _Died."""
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
        """Close the child's input, wait for it, and return its exit status."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has already ended
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
        """Return the child's last line of standard error."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((" ".join(line.split())[:200] for line in reversed(lines) if line.strip()), "")


def _ending(status: int, child: _Child) -> str:
    words = child.last_words()
    ending = f", saying: {words}" if words else ""
    if status == POISONED:
        return f"left a device that no longer answers{ending}"
    if status < 0:
        return f"died of {signal.Signals(-status).name}{ending}"
    return f"ended with status {status}{ending}"
