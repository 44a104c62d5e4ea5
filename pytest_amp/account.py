"""Account of failures that were raised but not yet received: a test that passes with such a failure is made to fail.

An exception may never reach pytest: in a future whose result is not read, in a task or a child process, or in an
``except:`` block. So each AmpFailure is added to the account when it is constructed, in any thread or forked process.
It is received, and removed, when pytest reports it, when ``pytest.raises`` or ``pytest.RaisesGroup`` matches it, or
when a check handles it itself (``receive``).
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
#: Open accounts of the sessions in this process, the innermost last: pytester runs a session within another one.
_OPEN: list[Account] = []


@dataclass(frozen=True)
class AccountEntry:
    """Entry of the account for a constructed failure.

    ``number`` identifies the failure in all processes, ``test`` is the node id of the test that was running, ``place``
    is the thread or process, "" for the main thread of the session's process, and ``text`` is the message.
    """

    number: str
    test: str
    place: str
    text: str

    def message(self) -> str:
        """Return the message, with the place in which the failure was lost."""
        return f"{self.text}\n  lost in   {self.place or 'what caught it'}: it was raised, and never reached pytest"


def note(text: str) -> str:
    """Add a failure that is being constructed to the innermost account, and return its number."""
    number = f"{os.getpid()}.{next(_COUNTER)}"
    if _OPEN:
        _OPEN[-1].add(number, text)
    return number


def receive(failure: BaseException) -> None:
    """Remove ``failure`` from every account; of an exception group, remove all members."""
    for inner in getattr(failure, "exceptions", ()):
        receive(inner)
    number = getattr(failure, "number", None)
    for account in _OPEN:
        if isinstance(number, str):
            account.remove(number)


class Account:
    """Account of the failures of one session; forked processes send theirs through a temporary file."""

    def __init__(self) -> None:
        """Open the account: failures that are constructed from now on are added to it."""
        self._process = os.getpid()
        self._entries: dict[str, AccountEntry] = {}
        # Opened now, so that forked processes inherit it. A line is appended in one write: lines do not interleave.
        self._file: Any = tempfile.TemporaryFile("a+b", buffering=0) if hasattr(os, "fork") else None  # noqa: SIM115
        #: Number of bytes of the file that were read.
        self._read = 0
        #: Forked processes that used a check: process id -> node id of the test.
        self._children: dict[int, str] = {}
        if not _OPEN:
            _watch(pytest.RaisesExc)
            _watch(pytest.RaisesGroup)
        _OPEN.append(self)

    def add(self, number: str, text: str) -> None:
        """Add a failure, with the running test and the current thread and process."""
        thread = threading.current_thread()
        places = [f"the thread {thread.name}"] if thread is not threading.main_thread() else []
        if os.getpid() != self._process:
            places.append(f"the process {os.getpid()}")
        entry = AccountEntry(number, _running_test(), " of ".join(places), text)
        self._entries[number] = entry
        self._send({"added": asdict(entry)})

    def remove(self, number: str) -> None:
        """Remove a failure."""
        self._entries.pop(number, None)
        self._send({"received": number})

    def use(self) -> None:
        """Note that a forked process uses a check: ``lost`` then examines its exit status."""
        if os.getpid() != self._process and os.getpid() not in self._children:
            self._children[os.getpid()] = _running_test()
            self._send({"used": os.getpid(), "test": _running_test()})

    def lost(self) -> list[AccountEntry]:
        """Return the failures not received, and one for each forked process that used a check and exited in error."""
        self._read_lines()
        for process, test in [*self._children.items()] if os.getpid() == self._process else ():
            status = _exit_of(process)
            if status is not None:
                del self._children[process]
            if status:
                number = f"{process}.end"
                text = f"AmpFailure: the process {process}, in which a check was used, ended with {status}"
                self._entries[number] = AccountEntry(number, test, f"the process {process}", text)
        return [*self._entries.values()]

    def settle(self, failures: Iterable[AccountEntry]) -> None:
        """Remove failures that were reported."""
        for failure in failures:
            self.remove(failure.number)

    def close(self) -> list[AccountEntry]:
        """Close the account and return its failures, after garbage collection: a finalizer may construct a failure."""
        if self not in _OPEN:
            return []
        gc.collect()
        remaining = self.lost()
        _OPEN.remove(self)
        if not _OPEN:
            _unwatch()
        if self._file is not None:
            self._file.close()
        return remaining

    def _send(self, line: dict[str, Any]) -> None:
        """Append a line to the file in a forked process; do nothing in the process that opened the account."""
        if os.getpid() != self._process and self._file is not None:
            os.write(self._file.fileno(), (json.dumps(line) + "\n").encode())

    def _read_lines(self) -> None:
        """Read the lines that forked processes have appended since the last call."""
        if self._file is None or os.getpid() != self._process:
            return
        size = os.fstat(self._file.fileno()).st_size
        if size <= self._read:
            return
        data = os.pread(self._file.fileno(), size - self._read, self._read)
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._read += len(complete_lines)
        for line in map(json.loads, complete_lines.splitlines()):
            if "added" in line:
                self._entries[line["added"]["number"]] = AccountEntry(**line["added"])
            elif "used" in line:
                self._children[line["used"]] = line["test"]
            else:
                self._entries.pop(line["received"], None)


def _running_test() -> str:
    """Return the node id of the running test, from PYTEST_CURRENT_TEST, which forked processes inherit."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def _exit_of(process: int) -> str | None:
    """Describe the exit of a child process: "" after success, or if its status is not available; None while it runs."""
    try:
        # WNOWAIT leaves the status to the code that started the process.
        status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    if status is None:
        return None
    kind = "status" if status.si_code == os.CLD_EXITED else "signal"
    return f"{kind} {status.si_status}" if status.si_status else ""


#: Original method ``__exit__`` of each patched class.
_ORIGINAL: dict[type, Callable[..., Any]] = {}


def _watch(kind: type) -> None:
    """Patch ``kind.__exit__``, which returns True if ``pytest.raises`` matched the exception: then receive it."""
    original: Callable[..., Any] = kind.__exit__  # type: ignore[attr-defined]

    @functools.wraps(original)
    def leave(self: object, kind: Any, value: BaseException | None, trace: Any) -> Any:
        __tracebackhide__ = True
        matched = original(self, kind, value, trace)
        # pytest.raises(ExceptionGroup) does not examine the members: they are not received.
        if matched and value is not None and (type(self) is pytest.RaisesGroup or not hasattr(value, "exceptions")):
            receive(value)
        return matched

    _ORIGINAL[kind] = original
    kind.__exit__ = leave  # type: ignore[attr-defined]


def _unwatch() -> None:
    """Restore the original methods."""
    for kind, original in _ORIGINAL.items():
        kind.__exit__ = original  # type: ignore[attr-defined]
    _ORIGINAL.clear()


def use() -> None:
    """Note the use of a check on the innermost account, if any."""
    if _OPEN:
        _OPEN[-1].use()
