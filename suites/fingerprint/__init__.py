"""Dtypes of every operator and module that torch itself tests, with autocast off and on."""

from __future__ import annotations

from pytest_amp.devices import DeviceKind
from pytest_amp.families import Family

FAMILY = Family("fingerprint", kinds=frozenset(DeviceKind))
