"""Update the file of fingerprints for the running torch, and report the changes."""

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

#: Devices that need no accelerator, in the order of the file.
DEVICES = ("cpu", "fake:cuda", "fake:xpu", "fake:mps", "fake:mtia")


class Lost(enum.Enum):
    """Treatment of an entry in the file whose dtypes cannot be observed now."""

    REFUSE = "the file is not written"
    FORGET = "its dtypes are removed from the file"
    KEEP = "its dtypes in the file are kept"


class GuardsLost(Exception):
    """Error that lists, one a line, the entries whose dtypes cannot be observed now and would be lost."""


def update(
    path: Path,
    devices: Sequence[str] = DEVICES,
    *,
    check: bool = False,
    entries: Sequence[str] = ("*",),
    lost: Lost = Lost.REFUSE,
) -> list[str]:
    """Write this torch's fingerprints on ``devices`` into the file, and return the differences as lines.

    A new release is added to those in the file, and a known release is replaced; ``entries`` (shell patterns) may
    select a part of a known release. ``check`` leaves the file unchanged. Raises ``sweep.NoEntries`` if torch's own
    tests cannot be imported, ExaminationFailed if an entry cannot be observed at all, and GuardsLost, with the file
    unchanged, if known dtypes cannot be observed now, unless ``lost`` says otherwise.
    """
    before = _load(path)
    updated = _load(path)  # a second copy, which the loop changes
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
            chosen = [entry for entry in sweep.entries(device) if _is_chosen(entry, entries)]
            observed = {entry: sweep.fingerprint(entry, device, precision.dtype_name) for entry in chosen}
            known_before = _expected(before, device, precision.name, version)
            expected = {entry: texts for entry, texts in known_before.items() if _is_chosen(entry, entries)}
            lines += _changes(before, device, precision.name, expected, observed)
            lost_lines = not_observed(expected, observed)
            unobserved += [f"{device.name} {precision.name} {line}" for line in lost_lines.values()]
            if lost is Lost.KEEP and device.kind is not DeviceKind.ACCELERATOR:
                observed |= {entry: latest(before, device.type, precision.name, entry, version) for entry in lost_lines}
            part = tuple(entries) != ("*",)
            if device.kind is DeviceKind.ACCELERATOR:
                differing = _different_from_fake(before.expected(device.type, precision.name, version), observed)
                updated.replace(REAL + device.type, precision.name, version, differing, part=part)
            else:
                updated.replace(device.type, precision.name, version, observed, part=part)
    sweep.close()
    if unobserved and lost is Lost.REFUSE:
        raise GuardsLost("\n".join(f"guard lost: {line}" for line in unobserved))
    lines += [f"guard {'kept' if lost is Lost.KEEP else 'lost'}: {line}" for line in unobserved]
    if not check:
        write_whole(data.write(updated), path, replace=True)
    return lines + [f"lost: {loss}" for loss in sweep.losses]


def _load(path: Path) -> Fingerprints:
    return data.load(path) if path.exists() else Fingerprints()


def _is_chosen(entry: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(entry, pattern) for pattern in patterns)


def _expected(known: Fingerprints, device: Device, dtype: str, version: str) -> dict[str, set[str | None]]:
    """Return the known fingerprints with which those of ``version`` are compared, by entry; empty if there are none."""
    if device.type not in known.measured:
        return {}
    # Compare a release that is older than all known ones with the oldest.
    reference = max(version, known.measured[device.type][0], key=Version)
    # Compare a real device that was not measured before with the fake device.
    real = device.kind is DeviceKind.ACCELERATOR and REAL + device.type in known.measured
    return known.expected(device.type, dtype, reference, real=real)


def _changes(
    known: Fingerprints,
    device: Device,
    dtype: str,
    expected: Mapping[str, Collection[str | None]],
    observed: Mapping[str, str],
) -> list[str]:
    label = f"{device.name} {dtype}"
    if device.type not in known.measured:
        return [f"{label}: {len(observed)} entries, of which nothing was known"]
    # Leave out dtypes that only a real device can observe.
    reported = {*Change} - ({Change.OBSERVED} if device.kind is DeviceKind.ACCELERATOR else set())
    return [
        f"{label} {difference.change.value} {difference}"
        for difference in differences(expected, observed)
        if difference.change in reported
    ]


def _different_from_fake(fake: Mapping[str, Collection[str | None]], observed: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprints of a real device that differ from the fake device's, or that only it could observe."""
    without_count = {name: [without_counts(text) for text in texts if text is not None] for name, texts in fake.items()}
    return {
        name: text
        for name, text in observed.items()
        if not any(_is_complete(known, text) and matches(known, text) for known in without_count.get(name, ()))
    }


def _is_complete(fake: str, real: str) -> bool:
    """Return whether the fake device observed all dtypes that the real one did."""
    return UNSEEN not in fake or UNSEEN in real


def _has_autocast(device: Device) -> bool:
    try:
        torch.is_autocast_enabled(device.type)
    except RuntimeError:
        return False
    return True


def carried() -> Path:
    """Return the path of the fingerprints in the package; in a checkout this is the repository's file."""
    return Path(data.__file__).with_name("fingerprints.txt")


def main(
    devices: Sequence[str] = DEVICES,
    *,
    path: Path | None = None,
    check: bool = False,
    entries: Sequence[str] = ("*",),
    lost: Lost = Lost.REFUSE,
) -> int:
    """Update the file and print the differences; return 1 if ``check`` finds any, or if known dtypes would be lost.

    Raises the exceptions of ``update`` except GuardsLost.
    """
    try:
        lines = update(path or carried(), devices, check=check, entries=entries, lost=lost)
    except GuardsLost as refused:
        print(  # noqa: T201
            f"{refused}\nnot written: the file would lose these dtypes; --keep-lost writes it with them, "
            "--allow-lost writes it all the same"
        )
        return 1
    for line in lines:
        print(line)  # noqa: T201  # a command's output
    print(f"torch {torch.__version__} ({short_release(torch.__version__)}): {len(lines)} differences")  # noqa: T201
    return int(check and bool(lines))
