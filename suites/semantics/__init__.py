"""Guarantees of an autocast region: when it is on, what it changes, and what it leaves unchanged.

The rules of single operators belong to the rules suite; here one operator that every device casts,
a matrix product, stands for all of them.
"""

from pytest_amp.devices import DeviceKind
from pytest_amp.families import Family

FAMILY = Family("semantics", kinds=frozenset(DeviceKind))
