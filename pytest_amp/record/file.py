"""The file of a run's observations: a later run's baseline, and the JSON report."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_amp.record.observation import Observation, Value

SCHEMA = 1


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
        "provenance": dict(sorted(record.provenance.items())),
        "summary": dict(record.summary),
    }
    text = json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False)
    ordered = sorted(record.observations, key=lambda observation: observation.key)
    lines = [json.dumps(_finite(o.to_json()), ensure_ascii=False, allow_nan=False) for o in ordered]
    body = ",\n".join(f"  {line}" for line in lines)
    return f'{text[:-2]},\n "observations": [\n{body}\n ]\n}}\n'


def _finite(value: Value) -> Value:
    """JSON has no infinity and no NaN: they are written as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return value


def write_record(record: Record, path: Path, *, replace: bool) -> None:
    """Write the whole file or nothing: to a neighbour first, then in one step to ``path``.

    With ``replace`` false an existing file is kept and RecordError raised, even if another process
    made it a moment ago. Raises RecordError where the disk says no.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(dumps(record))
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            if replace:
                temporary.replace(path)
            else:
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise RecordError(f"{path}: exists already, and a record is never overwritten") from None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None


def read_record(path: Path) -> Record:
    """The record in ``path``. Raises RecordError naming the file and what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
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
    return Record(
        observations=observations,
        provenance=data.get("provenance", {}),
        summary=data.get("summary", {}),
        complete=bool(data.get("complete", True)),
    )
