"""Families of checks, and the kinds of device on which each exists."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

from pytest_amp.devices.base import DeviceKind

REAL = frozenset({DeviceKind.CPU, DeviceKind.ACCELERATOR})


@dataclass(frozen=True)
class Family:
    """A family of checks: a package of tests declares one as ``FAMILY`` in its ``__init__.py``.

    ``name`` is the first part of its observations' keys; ``kinds`` are the kinds of device on which
    it exists. Elsewhere its tests are deselected, and nobody can ask for them.
    """

    name: str
    kinds: frozenset[DeviceKind] = REAL


#: Where tests belong whose package declares no family: a user's own.
PROJECT = Family("project", frozenset(DeviceKind))


def family_of(module: ModuleType | None) -> Family:
    """The family that ``module``'s package declares, else PROJECT; raises TypeError if it is no Family."""
    package = sys.modules.get(getattr(module, "__package__", None) or "")
    family = getattr(package, "FAMILY", PROJECT)
    if not isinstance(family, Family):
        name = getattr(package, "__name__", "")
        raise TypeError(f"{name}.FAMILY is {family!r}, not a pytest_amp.families.Family")
    return family
