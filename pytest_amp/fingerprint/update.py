"""Brings the file of fingerprints up to date with the torch that runs, and says what changed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from packaging.version import Version

from pytest_amp.devices import Device, DeviceKind, find_device
from pytest_amp.fingerprint import data
from pytest_amp.fingerprint.compare import differences
from pytest_amp.fingerprint.data import REAL, Fingerprints, short_release
from pytest_amp.fingerprint.dtypes import UNSEEN, matches
from pytest_amp.fingerprint.sweep import FingerprintSweep
from pytest_amp.precision import LOW
from pytest_amp.record import write_whole

#: Devices that need no hardware, in the order of the file.
DEVICES = ("cpu", "fake:cuda", "fake:xpu", "fake:mps", "fake:mtia")


def update(path: Path, devices: Sequence[str] = DEVICES, *, check: bool = False) -> list[str]:
    """Put what this torch gives on ``devices`` into the file; the lines that say what changed.

    A new release is added beside those that are known, and the one that is known is replaced. ``check``
    leaves the file as it is. Raises ``sweep.NoEntries`` where torch's own tests cannot be read, and ExaminationFailed
    where an entry cannot be looked at.
    """
    before, known = (data.load(path) if path.exists() else Fingerprints() for _ in range(2))
    version = torch.__version__
    lines: list[str] = []
    sweep = FingerprintSweep(path=sys.path)
    for name in devices:
        device = find_device(name)
        if not _has_autocast(device):
            lines.append(f"{name}: torch {version} has no autocast there")
            continue
        for precision in LOW.values():
            seen = {entry: sweep.fingerprint(entry, device, precision.dtype_name) for entry in sweep.entries(device)}
            lines += _changes(before, device, precision.name, version, seen)
            if device.kind is DeviceKind.ACCELERATOR:
                other = _other_than(before.expected(device.type, precision.name, version), seen)
                known.replace(REAL + device.type, precision.name, version, other)
            else:
                known.replace(device.type, precision.name, version, seen)
    sweep.close()
    if not check:
        write_whole(data.write(known), path, replace=True)
    return lines + [f"lost: {loss}" for loss in sweep.losses]


def _changes(known: Fingerprints, device: Device, dtype: str, version: str, seen: Mapping[str, str]) -> list[str]:
    where = f"{device.name} {dtype}"
    if device.type not in known.measured:
        return [f"{where}: {len(seen)} entries, of which nothing was known"]
    # A release older than all is held against the first of them.
    reference = max(version, known.measured[device.type][0], key=Version)
    # The first time a real device is held against a fake one.
    real = device.kind is DeviceKind.ACCELERATOR and REAL + device.type in known.measured
    expected = known.expected(device.type, dtype, reference, real=real)
    return [f"{where} {each.change.value} {each}" for each in differences(expected, seen)]


def _other_than(fake: Mapping[str, Collection[str | None]], seen: Mapping[str, str]) -> dict[str, str]:
    """What a real device gives otherwise, or could tell where a fake one could not."""
    return {
        name: text
        for name, text in seen.items()
        if not any(other is not None and _tells(other, text) and matches(other, text) for other in fake.get(name, ()))
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
    """The file in the package, which is the repository's in a checkout."""
    return Path(data.__file__).with_name("fingerprints.txt")


def main(devices: Sequence[str] = DEVICES, *, path: Path | None = None, check: bool = False) -> int:
    """The command: update the file and print what changed; 1 where ``check`` found something.

    Made to be hooked up to a command line: it prints, and raises only what ``update`` raises.
    """
    lines = update(path or carried(), devices, check=check)
    for line in lines:
        print(line)  # noqa: T201  # a command's output
    print(f"torch {torch.__version__} ({short_release(torch.__version__)}): {len(lines)} differences")  # noqa: T201
    return int(check and bool(lines))
