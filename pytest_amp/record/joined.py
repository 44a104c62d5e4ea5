"""Join two records of one release, such as a run of the suites and a later run of the family ``speed``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_amp.record.file import Record
from pytest_amp.record.observation import Keyed, Value

#: Dtypes of --amp-dtype: only one of two joined records may have a key in them. Every run has checks in fp32 and tf32.
_SELECTED = ("bf16", "fp16")


#: Entries of the provenance that all records of one run share.
_SHARED = ("torch", "torch_git", "plugin", "seed", "tolerance_scale")


def check_joinable(first: tuple[str, Record], second: tuple[str, Record]) -> None:
    """Check that two records agree in torch, plugin, seed, tolerance scale and the hardware of their common devices.

    Raises ValueError, in one line.
    """
    (old_name, old), (new_name, new) = first, second
    devices = [_mapping(record, "devices") for record in (old, new)]
    pairs = [(entry, old.provenance.get(entry), new.provenance.get(entry)) for entry in _SHARED]
    pairs += [(device, devices[0][device], devices[1][device]) for device in devices[0] if device in devices[1]]
    for entry, before, after in pairs:
        if before != after:
            raise ValueError(f"{old_name} has {entry} {before}, {new_name} {after}; expected equal values")


def joined(first: tuple[str, Record], second: tuple[str, Record]) -> Record:
    """Join two records, each given with the name of its file; the result has the provenance of the first.

    If both have a key in fp32 or tf32 in common, the second record's entries of that device and dtype are dropped.
    Raises ValueError, in one line, if both have a key in bf16 or fp16 in common.
    """
    (old_name, old), (new_name, new) = first, second
    known = {entry.key for entry in _entries(old)}
    shared = [entry for entry in _entries(new) if entry.key in known]
    duplicate = next((entry.key for entry in shared if entry.target[1] in _SELECTED), None)
    if duplicate is not None:
        torch = new.provenance.get("torch")
        raise ValueError(f"{old_name} and {new_name} have {duplicate} of torch {torch}; expected it in one record")
    dropped = {entry.target for entry in shared}
    revisions = {**_mapping(new, "revisions"), **_mapping(old, "revisions")}
    return replace(
        old,
        provenance={**old.provenance, "revisions": revisions} if revisions else old.provenance,
        observations=(*old.observations, *(entry for entry in new.observations if entry.target not in dropped)),
        failures=(*old.failures, *(entry for entry in new.failures if entry.target not in dropped)),
        summary={**new.summary, **old.summary},
        complete=old.complete and new.complete,
        ran=None if old.ran is None or new.ran is None else {**new.ran, **old.ran},
    )


def _entries(record: Record) -> tuple[Keyed, ...]:
    return (*record.observations, *record.failures)


def _mapping(record: Record, key: str) -> Mapping[str, Value]:
    value = record.provenance.get(key)
    return value if isinstance(value, dict) else {}
