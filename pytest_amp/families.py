"""Families: packages of tests with a common name, and the kinds of device on which they run."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pytest_amp.devices.base import DeviceKind

#: Kinds of device that have hardware.
REAL = frozenset({DeviceKind.CPU, DeviceKind.ACCELERATOR})


@dataclass(frozen=True)
class Family:
    """Family of tests: a package of tests declares one as ``FAMILY`` in its ``__init__.py``.

    ``name`` is the first part of the keys of its observations. ``kinds`` are the kinds of device on which its tests
    run; on other kinds they are always deselected. ``devices`` is the number of accelerators of one type that it needs:
    with fewer its tests are not run, and the summary reports that. ``long_on`` are the kinds of device on which all its
    tests belong to the long tier.
    """

    name: str
    kinds: frozenset[DeviceKind] = REAL
    devices: int = 1
    long_on: frozenset[DeviceKind] = frozenset()


#: Family of tests whose package declares no family: those of a user.
PROJECT = Family("project", frozenset(DeviceKind))


def family_of(module: ModuleType | None) -> Family:
    """Return the family of ``module``, declared by its package or the closest parent package; PROJECT without one.

    Raises ValueError if FAMILY is not a Family.
    """
    return family_of_package(getattr(module, "__package__", None))[0]


def family_of_package(name: str | None) -> tuple[Family, Path | None]:
    """Return the family that the package ``name`` or its closest parent declares, and the folder of that package."""
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
    """Return ``folder`` or its closest parent package that declares a family; None without one.

    The source of ``__init__.py`` is searched, because the package may not be imported yet.
    """
    while (file := folder / "__init__.py").is_file():
        lines = file.read_bytes().splitlines()  # bytes: the file need not be UTF-8
        if any(line.startswith((b"FAMILY =", b"FAMILY:")) and b"Family" in line for line in lines):
            return folder
        folder = folder.parent
    return None


def named_in(folder: Path) -> str:
    """Return the name of the family that the package in ``folder`` declares, even if it is not imported."""
    file = folder / "__init__.py"
    # vars() instead of getattr(): a module may define __getattr__, which may import further modules.
    modules = [vars(module) for module in [*sys.modules.values()] if type(module) is ModuleType]
    families = (module.get("FAMILY") for module in modules if module.get("__file__") == str(file))
    imported_name = next((family.name for family in families if isinstance(family, Family)), None)
    if imported_name is not None:
        return imported_name
    declaration = re.search(
        rb"""^FAMILY\b[^\n]*Family\(\s*(?:name\s*=\s*)?["'](\w+)["']""", file.read_bytes(), re.MULTILINE
    )
    return declaration[1].decode() if declaration is not None else folder.name
