"""Account of failures that were raised and not yet received: a test that passes with one on its account is red.

An exception may never reach pytest: in a future whose result is not read, a task, a process, under ``except:``. So each
AmpFailure is noted when it is constructed, in whatever thread or forked process. It is taken off the account once
pytest reports it, once ``pytest.raises`` or ``pytest.RaisesGroup`` has matched it, or where a check handles it itself
(``receive``).
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pytest

_COUNTER = itertools.count()
#: Accounts of the sessions in this process, the innermost last: pytester runs one session within another.
_OPEN: list[Account] = []


@dataclass(frozen=True)
class Made:
    """Record of a constructed failure: its number, the test that ran then, its thread or process, and its message."""

    number: str
    test: str
    place: str
    text: str

    def told(self) -> str:
        """Return the message and where the failure was lost."""
        return f"{self.text}\n  lost in   {self.place or 'what caught it'}: it was raised, and never reached pytest"


def note(text: str) -> str:
    """Note a failure that is being constructed and return its number."""
    number = f"{os.getpid()}.{next(_COUNTER)}"
    if _OPEN:
        _OPEN[-1].add(number, text)
    return number


def receive(failure: BaseException) -> None:
    """Take ``failure`` off the account, with all members of an exception group."""
    for inner in getattr(failure, "exceptions", ()):
        receive(inner)
    number = getattr(failure, "number", None)
    for account in _OPEN:
        if isinstance(number, str):
            account.remove(number)


class Account:
    """Account of the failures of one session; forked processes report theirs through a file."""

    def __init__(self) -> None:
        """Open the account: from now on failures are noted on it."""
        self._process = os.getpid()
        self._made: dict[str, Made] = {}
        # Opened before a process is forked, which inherits the file; each line is appended in one call.
        self._file: Any = tempfile.TemporaryFile("a+b", buffering=0) if hasattr(os, "fork") else None  # noqa: SIM115
        self._read = 0
        #: Forked processes that used a check: the test that did, by process id.
        self._children: dict[int, str] = {}
        if not _OPEN:
            _watch(pytest.RaisesExc)
            _watch(pytest.RaisesGroup)
        _OPEN.append(self)

    def add(self, number: str, text: str) -> None:
        """Note a failure."""
        thread = threading.current_thread()
        places = [f"the thread {thread.name}"] if thread is not threading.main_thread() else []
        if os.getpid() != self._process:
            places.append(f"the process {os.getpid()}")
        entry = Made(number, _running(), " of ".join(places), text)
        self._made[number] = entry
        self._tell({"made": asdict(entry)})

    def remove(self, number: str) -> None:
        """Take a failure off the account."""
        self._made.pop(number, None)
        self._tell({"received": number})

    def use(self) -> None:
        """Note the use of a check in a forked process, whose exit status is then examined."""
        if os.getpid() != self._process and os.getpid() not in self._children:
            self._children[os.getpid()] = _running()
            self._tell({"used": os.getpid(), "test": _running()})

    def lost(self) -> list[Made]:
        """Return failures that were not received, and each forked process that used a check and ended badly."""
        self._listen()
        for process, test in [*self._children.items()] if os.getpid() == self._process else ():
            status = _ended(process)
            if status is not None:
                del self._children[process]
            if status:
                number = f"{process}.end"
                text = f"AmpFailure: the process {process}, in which a check was used, ended with {status}"
                self._made[number] = Made(number, test, f"the process {process}", text)
        return [*self._made.values()]

    def settle(self, failures: Iterable[Made]) -> None:
        """Take reported failures off the account."""
        for failure in failures:
            self.remove(failure.number)

    def close(self) -> list[Made]:
        """Close the account and return what is left on it. Objects in reference cycles are finalized first."""
        if self not in _OPEN:
            return []
        gc.collect()
        left = self.lost()
        _OPEN.remove(self)
        if not _OPEN:
            _unwatch()
        if self._file is not None:
            self._file.close()
        return left

    def _tell(self, line: dict[str, Any]) -> None:
        if os.getpid() != self._process and self._file is not None:
            os.write(self._file.fileno(), (json.dumps(line) + "\n").encode())

    def _listen(self) -> None:
        """Read what forked processes have written since the last time."""
        if self._file is None or os.getpid() != self._process:
            return
        size = os.fstat(self._file.fileno()).st_size
        if size <= self._read:
            return
        data = os.pread(self._file.fileno(), size - self._read, self._read)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in map(json.loads, whole.splitlines()):
            if "made" in line:
                self._made[line["made"]["number"]] = Made(**line["made"])
            elif "used" in line:
                self._children[line["used"]] = line["test"]
            else:
                self._made.pop(line["received"], None)


def _running() -> str:
    """Return the running test, from the variable that pytest sets for every process of it."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def _ended(process: int) -> str | None:
    """Return how a child ended: "" after success or if it was already waited for; None while it runs."""
    try:
        status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if status is None:
        return None
    how = "status" if status.si_code == os.CLD_EXITED else "signal"
    return f"{how} {status.si_status}" if status.si_status else ""


_ORIGINAL: dict[type, Callable[..., Any]] = {}


def _watch(kind: type) -> None:
    """Receive what ``with pytest.raises(...)`` matched, which the return value of its ``__exit__`` tells."""
    original: Callable[..., Any] = kind.__exit__  # type: ignore[attr-defined]

    @functools.wraps(original)
    def leave(self: object, kind: Any, value: BaseException | None, trace: Any) -> Any:
        __tracebackhide__ = True
        matched = original(self, kind, value, trace)
        if matched and value is not None and (type(self) is pytest.RaisesGroup or not hasattr(value, "exceptions")):
            receive(value)
        return matched

    _ORIGINAL[kind] = original
    kind.__exit__ = leave  # type: ignore[attr-defined]


def _unwatch() -> None:
    for kind, original in _ORIGINAL.items():
        kind.__exit__ = original  # type: ignore[attr-defined]
    _ORIGINAL.clear()


def use() -> None:
    """Note on the open account, if any, that a check is used."""
    if _OPEN:
        _OPEN[-1].use()
