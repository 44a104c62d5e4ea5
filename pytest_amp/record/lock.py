"""Exclusive lock on a file, for a process that reads, changes and writes it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_amp.record.file import RecordError

#: Reading, merging and writing a record takes less than a second; more on a busy machine, and behind other processes.
PATIENCE = 30.0
#: Seconds between two attempts.
PAUSE = 0.02


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file, across processes and links to it.

    The lock is a neighbour of the file that only one process can create (not every file system supports the system's
    locks). Raises RecordError after PATIENCE seconds, and if no file can be created there. A lock that a killed process
    leaves has to be removed manually: only its user knows that it is dead, on whichever machine it ran.
    """
    path = path.resolve()
    lock = path.with_name(f".{path.name}.lock")
    until = time.monotonic() + PATIENCE
    while not _made(lock, path):
        if time.monotonic() > until:
            raise RecordError(
                f"{path}: another process has been changing it for {PATIENCE:g} s; valid: when that has ended; "
                f"where it was killed: without {lock.name} in the same folder, which it left"
            )
        time.sleep(PAUSE)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _made(lock: Path, path: Path) -> bool:
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None
    return True
