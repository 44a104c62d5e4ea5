"""Exclusive lock on a file, for a process that reads, changes and writes it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_amp.record.file import RecordError

#: Seconds to wait for the lock. Reading, merging and writing a record takes less than a second on an idle machine.
PATIENCE = 30.0
#: Seconds between two attempts.
PAUSE = 0.02


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file, across processes and links to it.

    The lock is a file in the same folder, which only one process can create: not every file system supports the
    operating system's locks, and these leave a file behind. Raises RecordError after PATIENCE seconds, or if the lock
    file cannot be created. If a process was killed, its lock file remains unless the release of filelock detects stale
    locks; the user must then remove it, since only the user knows on which machine the process ran.
    """
    from filelock import SoftFileLock, Timeout  # here: its import takes a tenth of a second

    path = path.resolve()
    if not path.parent.is_dir():  # filelock would create it
        raise RecordError(f"{path}: {os.strerror(errno.ENOENT)}")
    lock = SoftFileLock(path.with_name(f".{path.name}.lock"), timeout=PATIENCE)
    try:
        lock.acquire(poll_interval=PAUSE)
    except Timeout:
        raise RecordError(
            f"{path}: another process has been changing it for {PATIENCE:g} s; try again when it has ended, or, "
            f"if it was killed, after removing {Path(lock.lock_file).name} from the same folder"
        ) from None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()
