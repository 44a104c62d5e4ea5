"""Protocol between a process of pytest and its child processes, on ``multiprocessing.connection``.

1. *Start.* The parent listens and starts one command (``Children``), which is a child or a launcher of several. A child
   connects (``connect``), says its number, imports the requested modules and answers ``{"ready": True}``.
2. *Send and receive.* A request is a JSON object. Its answer is what ``torch.save`` can store, ``{"value": …}``; an
   exception of the child is an answer, too, ``{"error": text}``, and one that its device does not survive is
   ``{"poisoned": text}``.
3. *Deadline.* ``Children.waiting`` returns the children without an answer after some seconds; the caller decides
   whether they are ended.
4. *Death.* The connection of a child that died ends; ``receive`` then returns None, and ``Children.output`` has its
   last words. A child ends by itself once its parent has ended.
5. *End.* ``Children.end`` asks each child to leave, kills one that does not, and returns the command's exit status.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

#: Environment variable with the settings of a child.
SETTINGS = "PYTEST_AMP_CHILD"
#: Request to leave.
LEAVE = b"{}"


class StartFailed(Exception):
    """Failure of a child to connect; the message is a clause that says how it ended."""


class Children:
    """Child processes that one command starts, with a connection to each."""

    def __init__(
        self,
        command: Callable[[Path], Sequence[str]],
        settings: Mapping[str, Any],
        *,
        path: Sequence[str],
        environment: Mapping[str, str] | None = None,
        count: int = 1,
    ) -> None:
        """Listen and start a module with arguments, whose ``count`` children read ``settings``, which are JSON values.

        ``command`` returns them for a folder, in which the children may write until the end. They have ``path`` before
        the module search path of an interpreter, and ``environment`` beside the one of this process.
        """
        self.count = count
        self._temporary = tempfile.TemporaryDirectory(prefix="children")
        #: Folder of the socket, the output, and the files of the children.
        self.folder = Path(self._temporary.name)
        key = secrets.token_bytes(16)
        self._output = (self.folder / "output").open("w+b")
        self._connections: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        self._listener = Listener(_address(self.folder), backlog=count, authkey=key)
        place = {"address": self._listener.address, "key": key.hex(), "parent": os.getpid(), "folder": str(self.folder)}
        variables = {**os.environ, **(environment or {}), SETTINGS: json.dumps({**settings, **place})}
        if path:
            variables["PYTHONPATH"] = os.pathsep.join(path)
        self.process = subprocess.Popen(  # noqa: S603  # this interpreter, torch and this package
            [sys.executable, "-m", *command(self.folder)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    @property
    def pids(self) -> Mapping[int, int]:
        """Return the process ids of the children by number."""
        return self._pids

    def accept(self, limit: float) -> None:
        """Wait until every child has connected. Raises StartFailed if the command ends, or after ``limit`` seconds."""
        deadline = time.monotonic() + limit
        arrived: queue.Queue[Any] = queue.Queue()

        def accept() -> None:  # accept has no time limit of its own
            with contextlib.suppress(OSError, EOFError):  # the listener was closed
                for _ in range(self.count):
                    arrived.put(self._listener.accept())

        threading.Thread(target=accept, daemon=True).start()
        with self._listener:
            while len(self._connections) < self.count:
                try:
                    connection = arrived.get(timeout=0.2)
                except queue.Empty:
                    if self.process.poll() is not None:
                        words = last_words(self.output())
                        ending = f"ended with status {self.process.returncode}"
                        raise StartFailed(f"{ending}, saying: {words}" if words else ending) from None
                    if time.monotonic() > deadline:
                        raise StartFailed(f"did not start within {limit:g} s") from None
                    continue
                hello = json.loads(connection.recv_bytes())
                self._connections[hello["number"]], self._pids[hello["number"]] = connection, hello["pid"]

    def send(self, request: Mapping[str, Any]) -> list[int]:
        """Send a request to all children; return the numbers of those that have ended."""
        text = json.dumps(request).encode()
        return [number for number, connection in self._connections.items() if not _sent(connection, text)]

    def waiting(self, numbers: Iterable[int], limit: float) -> tuple[list[int], list[int]]:
        """Return the children of ``numbers`` that have answered or ended within ``limit`` seconds, and the rest.

        It returns as soon as one has.
        """
        connections = {number: self._connections[number] for number in numbers}
        ready = wait(list(connections.values()), timeout=max(limit, 0.0))
        answered = [number for number, connection in connections.items() if connection in ready]
        return answered, [number for number in connections if number not in answered]

    def receive(self, number: int) -> dict[str, Any] | None:
        """Return the answer of a child, or None if it has ended."""
        import torch

        try:
            data = self._connections[number].recv_bytes()
        except (EOFError, OSError):
            return None
        answer: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
        return answer

    def output(self) -> str:
        """Return what the command and its children have written."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def end(self, leave: float, close: float) -> int:
        """End the children and return the exit status of the command.

        A child that does not leave within ``leave`` seconds is killed; with 0 it is not asked. The command may take
        ``close`` seconds after the children, and is killed then.
        """
        stays = [
            number for number, connection in self._connections.items() if not leave or not _left(connection, leave)
        ]
        for number in stays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[number], getattr(signal, "SIGKILL", signal.SIGTERM))
        try:
            status = self.process.wait(close)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        for connection in self._connections.values():
            connection.close()
        return status

    def clean_up(self) -> None:
        """Remove the output and the folder."""
        self._listener.close()
        self._output.close()
        self._temporary.cleanup()


def last_words(output: str) -> str:
    """Return the last line of what a process has written, at most 200 characters of it."""
    return next((" ".join(line.split())[:200] for line in reversed(output.split("\n")) if line.strip()), "")


def _address(folder: Path) -> str | tuple[str, int]:
    """Return a socket in ``folder`` or, if its path is too long for a socket, a port of this machine."""
    path = str(folder / "socket")
    return path if len(os.fsencode(path)) < 100 and sys.platform != "win32" else ("127.0.0.1", 0)


def _sent(connection: Connection, text: bytes) -> bool:
    try:
        connection.send_bytes(text)
    except OSError:
        return False
    return True


def _left(connection: Connection, limit: float) -> bool:
    """Ask a child to leave and return whether it does."""
    try:
        connection.send_bytes(LEAVE)
        return connection.poll(limit) and not connection.recv_bytes()
    except (EOFError, OSError):
        return True


@dataclass(frozen=True)
class Parent:
    """Connection of a child to its parent, and the parent's settings."""

    connection: Connection
    settings: Mapping[str, Any]

    def import_modules(self) -> None:
        """Import the modules of the settings, before torch: their changes to torch must happen in the child, too."""
        for name in self.settings["modules"]:
            importlib.import_module(name)

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield each request, after the answer ``{"ready": True}``, until the parent asks to leave or ends."""
        self.answer({"ready": True})
        while True:
            try:
                request = json.loads(self.connection.recv_bytes())
            except (EOFError, OSError):
                return
            if not request:
                return
            yield request

    def answer(self, answer: Mapping[str, Any]) -> None:
        """Send an answer."""
        import torch

        buffer = io.BytesIO()
        torch.save(dict(answer), buffer)
        self.connection.send_bytes(buffer.getvalue())


def connect(number: int = 0) -> Parent:
    """Connect this process, the child with ``number``, to its parent, and end it once the parent has ended."""
    settings = json.loads(os.environ.pop(SETTINGS))
    address = settings["address"]
    key = bytes.fromhex(settings["key"])
    connection = Client(tuple(address) if isinstance(address, list) else address, authkey=key)
    assert isinstance(connection, Connection)
    connection.send_bytes(json.dumps({"number": number, "pid": os.getpid()}).encode())
    threading.Thread(target=_leave_with, args=(settings["parent"],), daemon=True).start()
    return Parent(connection, settings)


def _leave_with(parent: int) -> None:
    """Exit when the parent has ended, even from within a collective."""
    while True:
        time.sleep(1)
        try:
            os.kill(parent, 0)
        except OSError:
            os._exit(1)
