"""Join two records of one release, such as a run of the suites and a later run of the family ``speed``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_amp.record.file import Record
from pytest_amp.record.observation import SELECTED, Value

#: Entries of the provenance that all records of one run share, and those that have a part for each device or family.
_SHARED = ("torch", "torch_git", "plugin", "seed", "tolerance_scale")
_IN_PARTS = ("devices", "revisions")


def check_joinable(first: tuple[str, Record], second: tuple[str, Record]) -> None:
    """Check that two records agree in torch, plugin, seed, tolerance scale and the hardware of their common devices.

    Raises ValueError, in one line.
    """
    (old_name, old), (new_name, new) = first, second
    before, now = _mapping(old, "devices"), _mapping(new, "devices")
    pairs = [(entry, old.provenance.get(entry), new.provenance.get(entry)) for entry in _SHARED]
    pairs += [(device, before[device], now[device]) for device in before if device in now]
    for entry, earlier, later in pairs:
        if earlier != later:
            raise ValueError(f"{old_name} has {entry} {earlier}, {new_name} {later}; expected equal values")


def joined(first: tuple[str, Record], second: tuple[str, Record]) -> Record:
    """Join two records, each given with the name of its file; the result has the provenance of the first.

    Devices and revisions that only the second has are added. If both have a key in fp32 or tf32 in common, everything
    that the second has of that device and dtype is dropped. Raises ValueError, in one line, if both have a key in bf16
    or fp16 in common.
    """
    (old_name, old), (new_name, new) = first, second
    known = {entry.key for entry in old.entries}
    shared = [entry for entry in new.entries if entry.key in known]
    duplicate = next((entry.key for entry in shared if entry.target[1] in SELECTED), None)
    if duplicate is not None:
        torch = new.provenance.get("torch")
        raise ValueError(f"{old_name} and {new_name} have {duplicate} of torch {torch}; expected it in one record")
    dropped = {entry.place for entry in shared}
    new = new.part(lambda place: place not in dropped)
    parts: dict[str, Value] = {entry: {**_mapping(new, entry), **_mapping(old, entry)} for entry in _IN_PARTS}
    return replace(
        old,
        provenance={**old.provenance, **{entry: part for entry, part in parts.items() if part}},
        observations=(*old.observations, *new.observations),
        failures=(*old.failures, *new.failures),
        summary={**new.summary, **old.summary},
        complete=old.complete and new.complete,
        ran=None if old.ran is None or new.ran is None else {**new.ran, **old.ran},
    )


def _mapping(record: Record, key: str) -> Mapping[str, Value]:
    value = record.provenance.get(key)
    return value if isinstance(value, dict) else {}
