"""History of releases: the records of each release, split by back end and dtype, and compared release by release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from pytest_amp.record.difference import Difference, difference
from pytest_amp.record.file import Record
from pytest_amp.record.joined import joined


@dataclass(frozen=True)
class BackEnd:
    """Records of one back end, and of one card if it is an accelerator.

    ``name`` is ``cpu``, ``fake-cuda`` or ``cuda (NVIDIA H200)``. ``records`` has the record of each dtype in each
    release, None if there is none. ``steps`` maps a dtype and the index of a release to the comparison with the
    previous release that has a record.
    """

    name: str
    records: Mapping[str, tuple[Record | None, ...]]
    steps: Mapping[tuple[str, int], Difference]

    def recorded(self, index: int) -> bool:
        """Return whether the release with this index has a record."""
        return any(records[index] is not None for records in self.records.values())


@dataclass(frozen=True)
class History:
    """Releases of torch, oldest first, without the suffix of their builds (``2.13.0``), and the back ends by name."""

    releases: tuple[str, ...]
    back_ends: tuple[BackEnd, ...]


def history(records: Mapping[str, Record]) -> History:
    """Return the history of records, which are given by the names of their files.

    A record may have several back ends and dtypes, and a release several records. Raises ValueError, in one line, for
    fewer than two releases, for an unknown release, and for two records with the same fact of one release.
    """
    versions = {name: _version(name, record) for name, record in records.items()}
    releases = sorted(set(versions.values()))
    if len(releases) < 2:
        raise ValueError(f"a history needs records of two or more releases; got {len(records)} of {len(releases)}")
    parts: dict[str, dict[str, list[tuple[str, Record] | None]]] = {}
    for name, record in records.items():
        index = releases.index(versions[name])
        for back_end, dtype, part in _split(record):
            row = parts.setdefault(back_end, {}).setdefault(dtype, [None] * len(releases))
            earlier = row[index]
            row[index] = (name, part) if earlier is None else (name, joined(earlier, (name, part)))
    return History(
        tuple(map(str, releases)),
        tuple(_back_end(name, parts[name]) for name in sorted(parts, key=_order)),
    )


def _version(name: str, record: Record) -> Version:
    torch = record.provenance.get("torch")
    try:
        return Version(Version(str(torch)).public)
    except InvalidVersion:
        raise ValueError(f"{name}: torch {torch!r} is not a release") from None


def _split(record: Record) -> Iterator[tuple[str, str, Record]]:
    """Yield the name of each back end, each dtype on it, and the part of the record that has only these."""
    devices = record.provenance.get("devices")
    for device, dtype in sorted({entry.target for entry in record.entries}):
        facts = devices.get(device) if isinstance(devices, dict) else None
        card = facts.get("gpu") if isinstance(facts, dict) else None
        part = record.part(f"{device}-{dtype}".__eq__)
        yield f"{device} ({card})" if card else device, dtype, part


def _order(name: str) -> tuple[int, str]:
    """Return the sort key of a back end: the CPU, accelerators, fake devices."""
    return 0 if name == "cpu" else 2 if name.startswith("fake-") else 1, name


def _back_end(name: str, rows: Mapping[str, Sequence[tuple[str, Record] | None]]) -> BackEnd:
    records = {
        dtype: tuple(None if entry is None else entry[1] for entry in row) for dtype, row in sorted(rows.items())
    }
    steps: dict[tuple[str, int], Difference] = {}
    for dtype, row in records.items():
        earlier: Record | None = None
        for index, record in enumerate(row):
            if record is None:
                continue
            if earlier is not None:
                steps[dtype, index] = difference(earlier, record)
            earlier = record
    return BackEnd(name, records, steps)
