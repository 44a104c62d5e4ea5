"""From a name on the command line to a device."""

from __future__ import annotations

from pytest_amp.devices.accelerator import AcceleratorDevice, CudaDevice
from pytest_amp.devices.base import Device
from pytest_amp.devices.cpu import CpuDevice
from pytest_amp.devices.fake import FakeDevice

#: Device types whose autocast kernels are in every build of torch, and so can be checked without hardware.
FAKE_TYPES = ("cuda", "xpu", "mps", "mtia")


def find_device(name: str) -> Device:
    """The device called ``name`` (``cpu``, ``cuda:1``, ``fake:xpu``); whether it computes is the probe's question."""
    if name == "cpu":
        return CpuDevice()
    if name.startswith("fake:"):
        return FakeDevice(name.removeprefix("fake:"))
    device_type, _, index = name.partition(":")
    number = int(index) if index else None
    return CudaDevice(number) if device_type == "cuda" else AcceleratorDevice(device_type, number)
