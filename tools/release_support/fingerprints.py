"""Fingerprints of a release, taken from the record of its suites, without a second call of any operator."""

from __future__ import annotations

from pathlib import Path

from pytest_amp.fingerprint.compare import differences
from pytest_amp.fingerprint.data import Fingerprints, load, write
from pytest_amp.record import Kind, Record
from tools.fingerprints.known import latest, not_observed

#: A device (``cpu``, ``fake-cuda``) and a precision.
Target = tuple[str, str]


def with_record(file: Path, record: Record) -> tuple[str, list[str]]:
    """Return the text of a fingerprint file with those of a record, and a line for each difference.

    If a known result was not observed, the file keeps it, and a line begins with ``guard kept``. Raises ValueError if a
    record lacks entries of a device.
    """
    before = load(file)
    known = Fingerprints(
        {device: [*releases] for device, releases in before.measured.items()},
        {name: dict(places) for name, places in before.known.items()},
        before.reasons,
    )
    version, lines = str(record.provenance["torch"]), []
    for (device, dtype), observed in sorted(_entries(record).items()):
        device_type = device.removeprefix("fake-")
        expected = before.expected(device_type, dtype, version)
        lines += [
            f"{device} {dtype} {difference.change.value} {difference}" for difference in differences(expected, observed)
        ]
        for name, line in not_observed(expected, observed).items():
            lines.append(f"guard kept: {device} {dtype} {line}")
            observed[name] = latest(before, device_type, dtype, name, version)
        known.replace(device_type, dtype, version, observed)
    return write(known), lines


def _entries(record: Record) -> dict[Target, dict[str, str]]:
    """Return the fingerprints of a record by device and dtype. Raises ValueError if some are missing."""
    result: dict[Target, dict[str, str]] = {}
    counts: dict[Target, int] = {}
    for observation in record.observations:
        if observation.family == "fingerprint" and observation.kind is Kind.DTYPE:
            result.setdefault(observation.target, {})[observation.name] = str(observation.value)
        elif (observation.family, observation.name) == ("fingerprint", "entries"):
            counts[observation.target] = int(str(observation.value))
    for target, count in counts.items():
        has = len(result.get(target, {}))
        if has != count:
            raise ValueError(
                f"the record has {has} of {count} fingerprints of {'-'.join(target)}: run the family whole"
            )
    if not result:
        raise ValueError("the record has no fingerprints: run suites/fingerprint, too")
    return result
