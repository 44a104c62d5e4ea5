"""Brings the file of fingerprints up to date with the torch that runs, and says what changed."""

from __future__ import annotations

import enum
import sys
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from packaging.version import Version

from pytest_amp.devices import Device, DeviceKind, find_device
from pytest_amp.fingerprint import data
from pytest_amp.fingerprint.compare import Change, differences
from pytest_amp.fingerprint.data import REAL, Fingerprints, short_release
from pytest_amp.fingerprint.dtypes import UNSEEN, matches
from pytest_amp.fingerprint.sweep import FingerprintSweep
from pytest_amp.precision import LOW
from pytest_amp.record import write_whole
from pytest_amp.record.unseen import without_counts
from tools.fingerprints.known import latest, not_observed

#: Devices that need no hardware, in the order of the file.
DEVICES = ("cpu", "fake:cuda", "fake:xpu", "fake:mps", "fake:mtia")


class Lost(enum.Enum):
    """Treatment of an entry with known dtypes that cannot be observed now."""

    REFUSE = "the file stays as it is"
    FORGET = "the file forgets it"
    KEEP = "the file has what was known of it"


class GuardsLost(Exception):
    """Error that lists the entries in the file that could not be observed now and would be lost, a line for each."""


def update(
    path: Path,
    devices: Sequence[str] = DEVICES,
    *,
    check: bool = False,
    entries: Sequence[str] = ("*",),
    lost: Lost = Lost.REFUSE,
) -> list[str]:
    """Write this torch's fingerprints on ``devices`` into the file, and return the differences as lines.

    A new release is added to the known ones, and a known release is replaced; ``entries`` (shell patterns) may select a
    part of a known release. ``check`` leaves the file unchanged. Raises ``sweep.NoEntries`` if torch's own tests cannot
    be imported, ExaminationFailed if an entry cannot be observed at all, and GuardsLost, with the file unchanged, if
    known dtypes cannot be observed now, unless ``lost`` says otherwise.
    """
    before, known = (data.load(path) if path.exists() else Fingerprints() for _ in range(2))
    version = torch.__version__
    lines: list[str] = []
    unobserved: list[str] = []
    sweep = FingerprintSweep(path=sys.path)
    for name in devices:
        device = find_device(name)
        if not _has_autocast(device):
            lines.append(f"{name}: torch {version} has no autocast there")
            continue
        for precision in LOW.values():
            chosen = [name for name in sweep.entries(device) if _is_chosen(name, entries)]
            observed = {entry: sweep.fingerprint(entry, device, precision.dtype_name) for entry in chosen}
            known_before = _expected(before, device, precision.name, version)
            expected = {name: texts for name, texts in known_before.items() if _is_chosen(name, entries)}
            lines += _changes(before, device, precision.name, expected, observed)
            fingerprints = not_observed(expected, observed)
            unobserved += [f"{device.name} {precision.name} {line}" for line in fingerprints.values()]
            if lost is Lost.KEEP and device.kind is not DeviceKind.ACCELERATOR:
                observed |= {
                    entry: latest(before, device.type, precision.name, entry, version) for entry in fingerprints
                }
            part = tuple(entries) != ("*",)
            if device.kind is DeviceKind.ACCELERATOR:
                other = _other_than(before.expected(device.type, precision.name, version), observed)
                known.replace(REAL + device.type, precision.name, version, other, part=part)
            else:
                known.replace(device.type, precision.name, version, observed, part=part)
    sweep.close()
    if unobserved and lost is Lost.REFUSE:
        raise GuardsLost("\n".join(f"guard lost: {line}" for line in unobserved))
    lines += [f"guard {'kept' if lost is Lost.KEEP else 'lost'}: {line}" for line in unobserved]
    if not check:
        write_whole(data.write(known), path, replace=True)
    return lines + [f"lost: {loss}" for loss in sweep.losses]


def _is_chosen(name: str, entries: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in entries)


def _expected(known: Fingerprints, device: Device, dtype: str, version: str) -> dict[str, set[str | None]]:
    if device.type not in known.measured:
        return {}
    # A release older than all is compared with the oldest.
    reference = max(version, known.measured[device.type][0], key=Version)
    # A real device that was not measured before is compared with the fake one.
    real = device.kind is DeviceKind.ACCELERATOR and REAL + device.type in known.measured
    return known.expected(device.type, dtype, reference, real=real)


def _changes(
    known: Fingerprints,
    device: Device,
    dtype: str,
    expected: Mapping[str, Collection[str | None]],
    observed: Mapping[str, str],
) -> list[str]:
    where = f"{device.name} {dtype}"
    if device.type not in known.measured:
        return [f"{where}: {len(observed)} entries, of which nothing was known"]
    # A dtype that only a real device can observe is not a difference.
    reported = {*Change} - ({Change.OBSERVED} if device.kind is DeviceKind.ACCELERATOR else set())
    return [
        f"{where} {difference.change.value} {difference}"
        for difference in differences(expected, observed)
        if difference.change in reported
    ]


def _other_than(fake: Mapping[str, Collection[str | None]], observed: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprints of a real device that differ from the fake device's, or that only it could observe."""
    plain = {name: [without_counts(text) for text in texts if text is not None] for name, texts in fake.items()}
    return {
        name: text
        for name, text in observed.items()
        if not any(_tells(other, text) and matches(other, text) for other in plain.get(name, ()))
    }


def _tells(fake: str, real: str) -> bool:
    return UNSEEN not in fake or UNSEEN in real


def _has_autocast(device: Device) -> bool:
    try:
        torch.is_autocast_enabled(device.type)
    except RuntimeError:
        return False
    return True


def carried() -> Path:
    """Return the path of the file in the package, which is the repository's in a checkout."""
    return Path(data.__file__).with_name("fingerprints.txt")


def main(  # the options of a command
    devices: Sequence[str] = DEVICES,
    *,
    path: Path | None = None,
    check: bool = False,
    entries: Sequence[str] = ("*",),
    lost: Lost = Lost.REFUSE,
) -> int:
    """Update the file and print the differences; return 1 if ``check`` found any, or if a guard is lost.

    This is the entry point of a command line: it prints, and raises what ``update`` raises, except GuardsLost.
    """
    try:
        lines = update(path or carried(), devices, check=check, entries=entries, lost=lost)
    except GuardsLost as refused:
        print(  # noqa: T201
            f"{refused}\nnot written: what the file knows would be forgotten; --keep-lost writes what was known, "
            "--allow-lost writes it all the same"
        )
        return 1
    for line in lines:
        print(line)  # noqa: T201  # a command's output
    print(f"torch {torch.__version__} ({short_release(torch.__version__)}): {len(lines)} differences")  # noqa: T201
    return int(check and bool(lines))
