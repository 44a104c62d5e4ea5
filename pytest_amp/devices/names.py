"""Lookup of a device by its name on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_amp.devices.accelerator import AcceleratorDevice, CudaDevice
from pytest_amp.devices.base import Device
from pytest_amp.devices.cpu import CpuDevice
from pytest_amp.devices.fake import FakeDevice

#: Device types whose autocast kernels are in every build of torch, so that they can be checked without hardware.
FAKE_TYPES = ("cuda", "xpu", "mps", "mtia")


@dataclass(frozen=True)
class DeviceType:
    """A device type that is not torch's own, for the hook ``pytest_amp_devices``.

    ``name`` is what ``--amp-device`` takes and torch calls the type; ``make`` turns an index (None
    for the current device) into a Device. Left out, torch.accelerator's API serves. ``rules`` is a file
    of the format of pytest_amp/rules/spec.toml which says what autocast does there; without one, the
    operators with an autocast kernel are recorded and not judged.
    """

    name: str
    make: Callable[[int | None], Device] | None = None
    rules: Path | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless the name can be part of an option, a test id and a key."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name) or self.name in ("auto", "all", "fake"):
            raise ValueError(
                f"{self.name!r} cannot be a device type's name; expected letters, digits and _, as torch has it"
            )


#: Files of rules of the device types that were looked up in this process.
_RULES: dict[str, Path] = {}


def rules_of(device_type: str) -> Path | None:
    """Return the file of rules from a hook for ``device_type``, once a device of it was looked up in this process."""
    return _RULES.get(device_type)


def find_device(name: str, added: Iterable[DeviceType] = ()) -> Device:
    """Return the device called ``name`` (``cpu``, ``cuda:1``, ``fake:xpu``); the probe tells whether it computes."""
    if name.startswith("fake:"):
        return FakeDevice(name.removeprefix("fake:"))
    device_type, _, index = name.partition(":")
    number = int(index) if index else None
    for other in added:
        if other.name == device_type and other.rules is not None:
            _RULES[device_type] = other.rules
        if other.name == device_type and other.make is not None:
            return other.make(number)
    if device_type == "cpu":
        return CpuDevice()
    return CudaDevice(number) if device_type == "cuda" else AcceleratorDevice(device_type, number)
