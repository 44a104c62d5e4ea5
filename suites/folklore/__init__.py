"""Folklore about mixed precision, and the facts: each row of docs/explanation/folklore.md that a test can decide."""

from pytest_amp.devices import DeviceKind
from pytest_amp.families import Family

FAMILY = Family("folklore", kinds=frozenset(DeviceKind))
