"""Faults of torch that the suites expect: strict expected failures from the file in the parent folder of the families.

Of the rows that cover a test and whose first release has come, the last one in the file decides: a later row may end
a fault on one device or for one parameter, while an earlier row continues it for the rest.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_amp.data_files.releases import Release
from pytest_amp.known.rows import SHORT, Known, read_known

if TYPE_CHECKING:
    import pytest

#: Name of the file, in the parent folder of the packages of families.
FILE = "known.toml"


def faults_of_the_suites() -> Path:
    """Return the file of the suites, in an installed package or in a checkout."""
    package = importlib.util.find_spec("pytest_amp.suites")
    if package is not None and package.origin is not None:
        return Path(package.origin).with_name(FILE)
    return Path(__file__).parents[2] / "suites" / FILE


@functools.cache
def faults_beside(folder: Path, family: str) -> tuple[Known, ...]:
    """Return the rows for ``family`` in the file of the parent of its ``folder``; none if there is no file.

    Raises ValueError in one line that says what is wrong, and where.
    """
    rows = _read(folder.parent / FILE)
    return tuple(row for row in rows if any(key.startswith((f"{family}/", "*")) for key in row.keys))


@functools.cache
def _read(path: Path) -> tuple[Known, ...]:
    return read_known(path) if path.is_file() else ()


def fault_of(key: str, rows: Iterable[Known], release: Release, *, device_type: str, precision: str) -> Known | None:
    """Return the fault for which the test ``key`` is expected to fail on this release and machine; None without one."""
    begun = [
        row for row in rows if row.matches(key) and row.has_begun(release) and row.shows_here(device_type, precision)
    ]
    return begun[-1] if begun and begun[-1].is_in(release) else None


def expected_failure(row: Known) -> pytest.MarkDecorator:
    """Return the strict expected failure of a row. Raises ValueError in one line if the row names no exception."""
    import pytest  # the command pytest-amp reads the rows without it

    reason = f"{row.report}: {row.reason}"
    if not row.raises:
        return pytest.mark.xfail(strict=True, reason=reason)
    return pytest.mark.xfail(strict=True, reason=reason, raises=exceptions_of(row))


def exceptions_of(row: Known) -> tuple[type[BaseException], ...]:
    """Return the classes that ``row`` expects. Raises ValueError in one line for a name that is not an exception."""
    return tuple(_exception(SHORT.get(name, name), row) for name in row.raises)


def _exception(name: str, row: Known) -> type[BaseException]:
    """Import the longest prefix of the name that is a module, and look up the remaining attributes."""
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end])) if end else builtins
        except ImportError:
            continue
        for part in parts[end:]:
            value = getattr(value, part, None)
        if isinstance(value, type) and issubclass(value, BaseException):
            return value
        break
    raise ValueError(f"{row.name}: raises names {name!r}, which is not an exception here")
