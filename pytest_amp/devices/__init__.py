"""Devices that checks run on: their interface, and lookup by name."""

from pytest_amp.devices.base import Device, DeviceKind
from pytest_amp.devices.names import FAKE_TYPES, DeviceType, find_device

__all__ = ["FAKE_TYPES", "Device", "DeviceKind", "DeviceType", "find_device"]
