"""Process that answers requests, and is replaced after it has died."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_amp.child_process.poison import POISONED
from pytest_amp.child_process.protocol import Children, StartFailed, last_words
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
        self._settings = {"modules": list(modules), "examiner": examiner}
        self._path = [entry for entry in path if entry]
        self.timeout = timeout
        self._child: Children | None = None
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
            child.send(request)
            answer = self._answer(child)
        except _Died as death:
            self._child = None
            raise ProcessLost(f"the process that examined {name} {death}", str(death)) from None
        if "poisoned" in answer:
            self._child = None
            self._end(child)
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
        status, ending = self._end(child)
        if status != 0:
            raise ExaminationFailed(f"after all its work the process that examined operators {ending}")

    def _running(self) -> Children:
        if self._cannot_start is not None:
            raise ExaminationFailed(self._cannot_start)
        if self._child is None:
            self.starts += 1
            child = Children(lambda _folder: ["pytest_amp.child_process.child"], self._settings, path=self._path)
            try:
                child.accept(self.timeout)
                answer = self._answer(child)
            except StartFailed as failed:
                child.process.kill()
                self._end(child, leave=0)
                self._cannot_start = f"the process that examines operators {failed} before it was ready"
            except _Died as death:
                self._cannot_start = f"the process that examines operators {death} before it was ready"
            else:
                if "error" in answer:
                    self._end(child)
                    self._cannot_start = f"the process that examines operators cannot start: {answer['error']}"
            if self._cannot_start is not None:
                raise ExaminationFailed(self._cannot_start)
            self._child = child
        return self._child

    def _answer(self, child: Children) -> dict[str, Any]:
        """Return the next answer. Raises _Died if the child ends first, or has none in time."""
        answered, _ = child.waiting([0], self.timeout)
        if not answered:
            child.process.kill()
            self._end(child, leave=0)
            raise _Died(f"did not answer within {self.timeout:g} s and was killed")
        answer = child.receive(0)
        if answer is None:
            raise _Died(self._end(child)[1])
        return answer

    def _end(self, child: Children, leave: float | None = None) -> tuple[int, str]:
        """End ``child``; return its exit status, and how it ended, as a clause."""
        status = child.end(self.timeout if leave is None else leave, self.timeout)
        ending = _ending(status, child.output())
        child.clean_up()
        return status, ending


class _Died(Exception):
    """End of a child; the message says how it ended."""


def _ending(status: int, output: str) -> str:
    """Return how a child with an exit ``status`` ended, with the last line of its ``output``."""
    words = last_words(output)
    ending = f", saying: {words}" if words else ""
    if status == POISONED:
        return f"left a device that no longer answers{ending}"
    if status < 0:
        return f"died of {signal.Signals(-status).name}{ending}"
    return f"ended with status {status}{ending}"
