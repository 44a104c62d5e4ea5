"""One at a time: who changes a part of what a file has reads it and writes it without another between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_amp.record.file import RecordError

#: To read a record, merge and write it takes less than a second; on a busy machine, and with others before, some.
PATIENCE = 30.0
#: Seconds between two tries.
PAUSE = 0.02


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within it, nobody else is within it for this file, in whichever process, by whatever link to it.

    A neighbour of the file that only one process can make says so (a lock of the system's is not kept by each file
    system). Raises RecordError after PATIENCE seconds, and where no file can be made there. What is left by a process
    that was killed within has to be removed by hand: only its user knows that it is dead, on whichever machine it was.
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
