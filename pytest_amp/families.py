"""Families of checks, and the kinds of device on which each exists."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pytest_amp.devices.base import DeviceKind

REAL = frozenset({DeviceKind.CPU, DeviceKind.ACCELERATOR})


@dataclass(frozen=True)
class Family:
    """A family of checks: a package of tests declares one as ``FAMILY`` in its ``__init__.py``.

    ``name`` is the first part of its observations' keys; ``kinds`` are the kinds of device on which
    it exists. Elsewhere its tests are deselected, and cannot be selected. ``devices`` is how many
    accelerators of one type it needs: with fewer it is not run there, and the run says so. ``long_on`` are the
    kinds of device on which all of its tests belong to the long tier.
    """

    name: str
    kinds: frozenset[DeviceKind] = REAL
    devices: int = 1
    long_on: frozenset[DeviceKind] = frozenset()


#: Family of tests whose package declares none: a user's own tests.
PROJECT = Family("project", frozenset(DeviceKind))


def family_of(module: ModuleType | None) -> Family:
    """Return the family that ``module``'s package declares, else PROJECT; raises ValueError if it is no Family."""
    return family_of_package(getattr(module, "__package__", None))[0]


def family_of_package(name: str | None) -> tuple[Family, Path | None]:
    """Return the family that the package called ``name``, or the closest one around it, declares, with its folder."""
    while name:
        package = sys.modules.get(name)
        family = getattr(package, "FAMILY", None)
        if family is not None:
            if not isinstance(family, Family):
                raise ValueError(f"{name}.FAMILY is {family!r}, not a pytest_amp.families.Family")
            file = getattr(package, "__file__", None)
            return family, Path(file).parent if file else None
        name = name.rpartition(".")[0]
    return PROJECT, None


def declared_around(folder: Path) -> Path | None:
    """Return the folder that declares a family, ``folder`` or one around it; reads files that are not imported yet."""
    while (file := folder / "__init__.py").is_file():
        lines = file.read_bytes().splitlines()  # in any encoding
        if any(line.startswith((b"FAMILY =", b"FAMILY:")) and b"Family" in line for line in lines):
            return folder
        folder = folder.parent
    return None


def named_in(folder: Path) -> str:
    """Return the name of the family that the package in ``folder`` declares, even if it is not imported."""
    file = folder / "__init__.py"
    # Read their dictionaries: attribute access may create attributes of a module, and import further modules.
    modules = [vars(module) for module in [*sys.modules.values()] if type(module) is ModuleType]
    families = (module.get("FAMILY") for module in modules if module.get("__file__") == str(file))
    imported = next((family.name for family in families if isinstance(family, Family)), None)
    if imported is not None:
        return imported
    written = re.search(
        rb"""^FAMILY\b[^\n]*Family\(\s*(?:name\s*=\s*)?["'](\w+)["']""", file.read_bytes(), re.MULTILINE
    )
    return written[1].decode() if written is not None else folder.name
