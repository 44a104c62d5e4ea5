"""The file of a run's observations: a later run's baseline, and the JSON report."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_amp.record.observation import Observation, Value, finite

SCHEMA = 1
#: What file systems answer that have no hard links (FAT, some network mounts and containers).
NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class RecordError(ValueError):
    """A file that cannot be read or written; the message is one line and names it."""


@dataclass(frozen=True)
class Record:
    """The observations of one run, where they come from, and whether the run ended as it should.

    ``provenance`` tells torch's version, the hardware, the seed and so on: it is never part of a
    key, since comparing across versions is what a record is for. ``summary`` counts what ran.
    """

    observations: tuple[Observation, ...]
    provenance: Mapping[str, Value] = field(default_factory=dict)
    summary: Mapping[str, Value] = field(default_factory=dict)
    complete: bool = True

    def by_key(self) -> dict[str, Observation]:
        """Observations by their key."""
        return {observation.key: observation for observation in self.observations}


def dumps(record: Record) -> str:
    """One observation a line, sorted by key, so that two files can be read side by side in a diff."""
    head = {
        "schema": SCHEMA,
        "complete": record.complete,
        "provenance": finite(dict(sorted(record.provenance.items()))),
        "summary": finite(dict(record.summary)),
    }
    text = json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False)
    ordered = sorted(record.observations, key=lambda observation: observation.key)
    lines = [json.dumps(finite(o.to_json()), ensure_ascii=False, allow_nan=False) for o in ordered]
    body = ",\n".join(f"  {line}" for line in lines)
    return f'{text[:-2]},\n "observations": [\n{body}\n ]\n}}\n'


def write_record(record: Record, path: Path, *, replace: bool) -> None:
    """``write_whole`` of the record's JSON. Raises RecordError where a value is none, too."""
    try:
        text = dumps(record)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from None
    write_whole(text, path, replace=replace)


def write_whole(text: str, path: Path, *, replace: bool) -> None:
    """Write the whole file or nothing: to a neighbour first, then in one step to ``path``.

    With ``replace`` false an existing file is kept and RecordError raised, even if another process
    made it a moment ago; with it true, a link stays and the file that it leads to is replaced. What
    is no regular file (a device, a pipe, a folder) is never replaced. Raises RecordError for that
    too, and where the disk says no.
    """
    if replace:
        path = path.resolve()
    if path.exists() and not path.is_file():
        raise RecordError(f"{path}: not a regular file")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            # A lone surrogate, which a path on the command line may have, becomes JSON's own escape.
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            if replace:
                temporary.replace(path)
            else:
                _place(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise RecordError(f"{path}: exists already, and a record is never overwritten") from None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None


def _place(temporary: Path, path: Path) -> None:
    """Give a whole file its name unless the name is taken; raises FileExistsError."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Take the name first, with nothing in it, then give it the whole file.
        path.touch(exist_ok=False)
        try:
            temporary.replace(path)
        except OSError:
            path.unlink()
            raise


def read_record(path: Path) -> Record:
    """The record in ``path``. Raises RecordError naming the file and what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict) or "schema" not in data or not isinstance(data.get("observations"), list):
        raise RecordError(f"{path}: not a record of this plugin")
    if data["schema"] != SCHEMA:
        raise RecordError(f"{path}: schema {data['schema']!r}; this version reads {SCHEMA}")
    try:
        observations = tuple(Observation.from_json(item) for item in data["observations"])
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from None
    keys = [observation.key for observation in observations]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RecordError(f"{path}: two observations with the key {twice}")
    provenance, summary, complete = data.get("provenance", {}), data.get("summary", {}), data.get("complete")
    if not isinstance(provenance, dict) or not isinstance(summary, dict) or not isinstance(complete, bool):
        raise RecordError(f"{path}: provenance and summary must be objects, and complete true or false")
    return Record(observations, provenance, summary, complete)
