"""Faults that a project accepts (--amp-known): those of its rows that explain a failure."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_amp.data_files.releases import Release
from pytest_amp.known.expected import exceptions_of
from pytest_amp.known.rows import Known


def matching(
    known: Iterable[Known], keys: Iterable[str], release: Release, device_type: str, precision: str
) -> list[Known]:
    """Return the faults of this release and machine that cover one of ``keys``."""
    listed = list(keys)
    return [
        row
        for row in known
        if any(row.matches(key) for key in listed) and row.is_in(release) and row.shows_here(device_type, precision)
    ]


def explains(row: Known, error: BaseException | None) -> bool:
    """Return whether ``error`` is an exception that ``row`` expects; None is a failure without an exception.

    Raises ValueError in one line if the row names no exception.
    """
    if not row.raises or error is None:
        return True
    return isinstance(error, exceptions_of(row))
