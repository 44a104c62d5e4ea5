"""File of a run's observations: a later run's baseline, and the JSON report."""

from __future__ import annotations

import errno
import functools
import gzip
import io
import json
import os
import stat
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pytest_amp.record import table
from pytest_amp.record.observation import DEEPEST, Keyed, Kind, Observation, Value, check_key, deeper_than, finite
from pytest_amp.record.renamed import Renaming, renamings_for, renewed, renewed_test

SCHEMA = 4
#: Suffix of compressed files when writing, and the first bytes by which they are recognized when reading.
GZIP, GZIP_MAGIC = ".gz", b"\x1f\x8b"
#: Maximum size of a file in bytes, decompressed: a hundred times that of a record. gzip may expand a thousandfold.
LARGEST = 2**28
#: Maximum nesting of lists and objects in a file: a value lies in a row of a table of a list of the file.
DEEPEST_FILE = DEEPEST + 5
#: Errors of file systems without hard links (FAT, some network mounts and containers).
NO_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class RecordError(ValueError):
    """File that cannot be read or written; the message is one line and names it."""


_Row = TypeVar("_Row")

#: Prefix of the failure of a strict expected failure that passes.
FIXED = "[XPASS(strict)] fixed upstream: "


@dataclass(frozen=True)
class Failure(Keyed):
    """Failed test: ``key`` is ``family/device/dtype/file::test[its own parameters]``, ``why`` one line."""

    key: str
    why: str

    @property
    def test(self) -> str:
        """Return the test without its parameters, as observations name it."""
        return self.key.split("/", 3)[3].partition("[")[0]

    @property
    def is_fixed(self) -> bool:
        """Return whether the test was expected to fail, and passes."""
        return self.why.startswith(FIXED)


@dataclass(frozen=True)
class Record:
    """Observations of one run, with their provenance and the tests that ran.

    ``provenance`` has torch's version, the hardware, the seed and other facts that values may depend on. It is not part
    of a key, so that records of different versions can be compared. ``summary`` counts the executed tests. ``complete``
    is False if the run was interrupted or had problems. ``ran`` maps device, dtype and family (``cpu-bf16 rules``) to
    the tests of which every parameter passed: an observation that such a test no longer makes is gone. It is None for a
    file without this entry. ``failures`` are the failed tests.
    """

    observations: tuple[Observation, ...]
    provenance: Mapping[str, Value] = field(default_factory=dict)
    summary: Mapping[str, Value] = field(default_factory=dict)
    complete: bool = True
    ran: Mapping[str, tuple[str, ...]] | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def entries(self) -> tuple[Keyed, ...]:
        """All observations and failures."""
        return (*self.observations, *self.failures)

    def part(self, has: Callable[[str], bool]) -> Record:
        """Return the record with only the entries, tests and counts of the places (``cpu-bf16``) that ``has`` names."""
        return replace(
            self,
            observations=tuple(entry for entry in self.observations if has(entry.place)),
            failures=tuple(entry for entry in self.failures if has(entry.place)),
            summary=_of_places(self.summary, has),
            ran=None if self.ran is None else _of_places(self.ran, has),
        )

    def by_key(self) -> dict[str, Observation]:
        """Observations by their key."""
        return {observation.key: observation for observation in self.observations}

    def ran_whole(self, what: Observation | Failure) -> bool:
        """Whether the test of ``what`` ran whole on its device and dtype in this run, as far as is known."""
        if self.ran is not None:
            return what.test in self.ran.get(f"{what.place} {what.family}", ())
        return (what.family, what.test, what.target) in self._seen

    def saw(self, observation: Observation) -> bool:
        """Whether this run observed anything in the test of ``observation`` on its device and dtype."""
        return (observation.family, observation.test, observation.target) in self._seen

    @property
    def is_of_one_seed(self) -> bool:
        """Whether it has errors and none has values over seeds."""
        errors = [observation for observation in self.observations if observation.kind is Kind.ERROR]
        return bool(errors) and all(observation.over_seeds is None for observation in errors)

    @functools.cached_property
    def _seen(self) -> frozenset[tuple[str, str, tuple[str, str]]]:
        return frozenset(
            (observation.family, observation.test, observation.target) for observation in self.observations
        )


def _of_places(rows: Mapping[str, _Row], has: Callable[[str], bool]) -> dict[str, _Row]:
    return {name: row for name, row in rows.items() if has(name.partition(" ")[0])}


def dumps(record: Record) -> str:
    """Return the text of the file. Tables are sorted and have a line for each observation, for diffs of two files."""
    head: dict[str, Value] = {
        "schema": SCHEMA,
        "complete": record.complete,
        "provenance": finite(dict(sorted(record.provenance.items()))),
        "summary": finite(dict(record.summary)),
    }
    text = json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False)[:-2]
    if record.ran is not None:
        rows = [f"{_line(place)}: {_line([*tests])}" for place, tests in sorted(record.ran.items())]
        text += ',\n "ran": {\n' + ",\n".join(f"  {row}" for row in rows) + "\n }"
    failures = [
        _line({"key": failure.key, "why": failure.why})
        for failure in sorted(record.failures, key=lambda failure: failure.key)
    ]
    text += ',\n "failures": [\n' + ",\n".join(f"  {line}" for line in failures) + "\n ]"
    text += f',\n "columns": {_line([*table.COLUMNS])}'
    text += ',\n "observations": [\n' + "\n".join(table.lines(record.observations)) + "\n ]"
    return text + "\n}\n"


def _line(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_record(record: Record, path: Path, *, replace: bool) -> None:
    """Write a record's JSON with ``write_whole``, compressed if the name of ``path`` ends in .gz.

    Also raises RecordError for a value that JSON cannot represent.
    """
    try:
        text = dumps(record)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from None
    write_whole(text, path, replace=replace)


def write_whole(text: str, path: Path, *, replace: bool) -> None:
    """Write a file atomically: write a temporary file in the same folder, then rename or link it.

    If ``replace`` is False and the file exists, RecordError is raised and the file is unchanged, even if another
    process has only just created it. If ``replace`` is True and ``path`` is a symbolic link, its target is replaced. A
    device, a pipe or a folder is never replaced. A file named ``*.gz`` is compressed reproducibly. Raises RecordError
    if the file cannot be written.
    """
    # A lone surrogate, as a path on the command line may have, is written as a JSON escape.
    data = text.encode("utf-8", errors="backslashreplace")
    if path.suffix == GZIP:
        data = gzip.compress(data, mtime=0)
    if replace:
        path = path.resolve()
    if path.exists() and not path.is_file():
        raise RecordError(f"{path}: not a regular file")
    try:
        # A name may have the maximum length, so the temporary name uses a part of it.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(_mode(path))
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


def _mode(path: Path) -> int:
    """Return the file mode of ``path``: that of the file that it replaces, else the user's default."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)  # the umask can only be read by setting it
    os.umask(mask)
    return 0o666 & ~mask


def _place(temporary: Path, path: Path) -> None:
    """Give a complete file its name unless the name is taken; raises FileExistsError."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Reserve the name with an empty file, then replace that by the complete one.
        path.touch(exist_ok=False)
        try:
            temporary.replace(path)
        except OSError:
            path.unlink()
            raise


def read_record(path: Path) -> Record:
    """Return the record in ``path``. Raises RecordError, which names the file and the error."""
    text = content(path)
    try:
        return parsed(text)
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from None


def content(path: Path) -> str:
    """Return the text of a file, decompressed if needed. Raises RecordError in one line that names it."""
    data = _bytes(path)
    if data.startswith(GZIP_MAGIC):
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(LARGEST + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise RecordError(f"{path}: compressed, and not whole: {error}") from None
        if len(data) > LARGEST:
            raise RecordError(f"{path}: more than {LARGEST >> 20} MiB, which no record has")
    try:
        return data.decode("utf-8-sig")  # editors on Windows prepend a byte order mark
    except ValueError as error:
        raise RecordError(f"{path}: not text: {error}") from None


def _bytes(path: Path) -> bytes:
    """Read a regular file of at most LARGEST bytes. Raises RecordError for anything else, without waiting for it.

    A pipe does not end before its writer closes it, and a device such as /dev/zero never ends.
    """
    try:
        # Without O_NONBLOCK, which Windows lacks, opening a pipe waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RecordError(f"{path}: not a regular file")
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None
    if len(data) > LARGEST:
        raise RecordError(f"{path}: more than {LARGEST >> 20} MiB, which no record has")
    return data


def parsed(text: str) -> Record:
    """Parse ``text`` as a record. Raises ValueError in one line."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if deeper_than(DEEPEST_FILE, data):
        raise ValueError(f"lists and objects nested more than {DEEPEST_FILE} deep, which no record has")
    return from_data(data)


def from_data(data: object) -> Record:
    """Convert JSON ``data`` to a record. Raises ValueError in one line."""
    if not isinstance(data, dict) or "schema" not in data or not isinstance(data.get("observations"), list):
        raise ValueError("not a record of this plugin")
    schema = data["schema"]
    if isinstance(schema, bool) or schema != SCHEMA:
        newer = " (a newer pytest-amp wrote it)" if isinstance(schema, int) and schema > SCHEMA else ""
        named = repr(schema[:80]) if isinstance(schema, str) else str(schema)[:80]
        raise ValueError(f"schema {named}{newer}; this version reads {SCHEMA}")
    observations = tuple(Observation.from_json(item) for item in table.items(data["observations"]))
    failures = tuple(_failure(item) for item in _list(data, "failures"))
    ran = _ran(data.get("ran"))
    _expect_unique(observations)
    provenance, summary, complete = data.get("provenance", {}), data.get("summary", {}), data.get("complete")
    if not isinstance(provenance, dict) or not isinstance(summary, dict) or not isinstance(complete, bool):
        raise ValueError("provenance and summary must be objects, and complete true or false")
    record = Record(observations, provenance, summary, complete, ran, failures)
    return _with_present_keys(record)


def _expect_unique(observations: Iterable[Observation]) -> None:
    counts = Counter(observation.key for observation in observations)
    twice = next((key for key, count in counts.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"two observations with the key {twice}")


def _with_present_keys(record: Record) -> Record:
    """Rename the keys in a record of an earlier version to present keys. Raises ValueError if two become equal."""
    rows = renamings_for(record.provenance.get("plugin"))
    if not rows:
        return record
    observations = renewed(record.observations, rows)
    _expect_unique(observations)
    failures = tuple(replace(failure, key=renewed_test(failure.key, rows)) for failure in record.failures)
    ran = None if record.ran is None else _ran_as_today(record.ran, rows)
    revisions = _revisions(record, observations)
    provenance = record.provenance if revisions is None else {**record.provenance, "revisions": revisions}
    return replace(record, observations=observations, failures=failures, ran=ran, provenance=provenance)


def _ran_as_today(ran: Mapping[str, tuple[str, ...]], rows: tuple[Renaming, ...]) -> dict[str, tuple[str, ...]]:
    """Return ``ran`` with present names; a test that moved to another family is listed under that family."""
    places: dict[str, list[str]] = {}
    for place, tests in ran.items():
        target, _, family = place.rpartition(" ")
        device, _, dtype = target.rpartition("-")
        if not tests:
            places.setdefault(place, [])
        for test in tests:
            key = renewed_test(f"{family}/{device}/{dtype}/{test}", rows)
            now = key.partition("/")[0]
            places.setdefault(place if now == family else f"{target} {now}", []).append(key.split("/", 3)[3])
    return {place: tuple(tests) for place, tests in places.items()}


def _revisions(record: Record, observations: Iterable[Observation]) -> dict[str, Value] | None:
    """Return the revisions, completed for families to which tests moved by the revisions of their earlier families."""
    revisions = record.provenance.get("revisions")
    if not isinstance(revisions, dict):
        return None
    moved: dict[str, set[str]] = {}
    for before, now in zip(record.observations, observations, strict=True):
        if now.family != before.family and now.family not in revisions:
            moved.setdefault(now.family, set()).add(str(revisions.get(before.family)))
    return {**revisions, **{family: "+".join(sorted(earlier)) for family, earlier in moved.items()}}


def _list(data: Mapping[str, object], name: str) -> list[object]:
    value = data.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name} is {str(value)[:80]!r}, not a list")
    return value


def _failure(item: object) -> Failure:
    key, why = (item.get("key"), item.get("why")) if isinstance(item, dict) else (None, None)
    if not isinstance(key, str) or not isinstance(why, str):
        raise ValueError(f"a failure without a key or a reason: {str(item)[:80]!r}")
    return Failure(check_key(key), why)


def _ran(value: object) -> dict[str, tuple[str, ...]] | None:
    if value is None:
        return None
    counts = {}
    for place, tests in value.items() if isinstance(value, dict) else [("", None)]:
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise ValueError(f"ran is {str(value)[:80]!r}, not lists of tests by place")
        counts[place] = tuple(tests)
    return counts
