"""Child process that runs examinations on request, and is restarted after a crash."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_amp.child_process.poison import POISONED
from pytest_amp.child_process.protocol import Children, StartFailed, last_words
from pytest_amp.devices.faults import fault_of_text


class ExaminationFailed(Exception):
    """Failure of an examination: it raised an exception, crashed the process, or timed out."""


class ProcessLost(ExaminationFailed):
    """Failure that ends the child: a crash, a timeout, or an error after which the device is unusable."""

    def __init__(self, message: str, how: str) -> None:
        """Store ``how``, a predicate whose subject is the examined operator: ``died of SIGSEGV``."""
        super().__init__(message)
        self.how = how


class Isolated:
    """Client of a child process, which is started at the first request, and again after a crash."""

    def __init__(
        self, examiner: str, *, modules: Sequence[str] = (), path: Sequence[str] = (), timeout: float = 300.0
    ) -> None:
        """Configure the child.

        ``examiner`` is the name of a function, ``module:function``. The child calls it with the request and the device,
        and it returns a JSON value. ``path`` is prepended to the child's module search path. The child imports
        ``modules`` before torch. Its start, and every request, may take ``timeout`` seconds.
        """
        self._settings = {"modules": list(modules), "examiner": examiner}
        self._path = [entry for entry in path if entry]
        self.timeout = timeout
        self._child: Children | None = None
        self._cannot_start: str | None = None
        #: Number of children that were started.
        self.starts = 0

    def ask(self, request: Mapping[str, Any], name: str) -> Any:
        """Send ``request`` to the child and return the result of the examiner.

        ``request["device"]`` is the name of the device. ``name`` is the name of the examined operator in messages.
        Raises ProcessLost if the child crashes or times out, or its device becomes unusable. Raises ExaminationFailed
        if the examiner raises an exception, or no child can be started.
        """
        child = self._started_child()
        try:
            child.send(request)
            answer = self._receive(child)
        except _ChildDied as death:
            self._child = None
            raise ProcessLost(f"the process that examined {name} {death}", str(death)) from None
        if "poisoned" in answer:  # a sticky error: every later call on the device would fail in that process
            self._child = None
            self._end(child)
            reason = answer["poisoned"]
            fault = fault_of_text(reason)
            if fault is not None:  # a new process would have the same fault
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

    def _started_child(self) -> Children:
        """Return the child, after starting it if necessary. Raises ExaminationFailed if it cannot be started."""
        if self._cannot_start is not None:
            raise ExaminationFailed(self._cannot_start)
        if self._child is None:
            self.starts += 1
            child = Children(lambda _folder: ["pytest_amp.child_process.child"], self._settings, path=self._path)
            try:
                child.accept(self.timeout)
                answer = self._receive(child)
            except StartFailed as failed:
                child.process.kill()
                self._end(child, leave=0)
                self._cannot_start = f"the process that examines operators {failed} before it was ready"
            except _ChildDied as death:
                self._cannot_start = f"the process that examines operators {death} before it was ready"
            else:
                if "error" in answer:
                    self._end(child)
                    self._cannot_start = f"the process that examines operators cannot start: {answer['error']}"
            if self._cannot_start is not None:
                raise ExaminationFailed(self._cannot_start)
            self._child = child
        return self._child

    def _receive(self, child: Children) -> dict[str, Any]:
        """Receive the next answer. Raises _ChildDied if the child ends or times out instead."""
        answered, _ = child.waiting([0], self.timeout)
        if not answered:
            child.process.kill()
            self._end(child, leave=0)
            raise _ChildDied(f"did not answer within {self.timeout:g} s and was killed")
        answer = child.receive(0)
        if answer is None:
            raise _ChildDied(self._end(child)[1])
        return answer

    def _end(self, child: Children, leave: float | None = None) -> tuple[int, str]:
        """End ``child``; return its exit status, and a predicate that describes how it ended.

        ``leave`` is the number of seconds in which it may exit by itself, and ``timeout`` by default; 0 kills it.
        """
        status = child.end(self.timeout if leave is None else leave, self.timeout)
        ending = _ending(status, child.output())
        child.clean_up()
        return status, ending


class _ChildDied(Exception):
    """Unexpected end of the child. The message is a predicate, such as ``died of SIGSEGV``."""


def _ending(status: int, output: str) -> str:
    """Return a predicate for an exit ``status``, such as ``died of SIGSEGV``, with the last line of ``output``."""
    last_line = last_words(output)
    quotation = f", saying: {last_line}" if last_line else ""
    if status == POISONED:
        return f"left a device that no longer answers{quotation}"
    if status < 0:
        return f"died of {signal.Signals(-status).name}{quotation}"
    return f"ended with status {status}{quotation}"
