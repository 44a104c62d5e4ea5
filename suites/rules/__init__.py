"""Autocast's treatment of each operator, on every device that has rules: CPU, accelerators and fake devices."""

from __future__ import annotations

from pytest_amp.devices import DeviceKind
from pytest_amp.families import Family

FAMILY = Family("rules", kinds=frozenset(DeviceKind))
