"""Faults that a project accepts (--amp-known): those of its rows that explain a failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_amp.data_files.releases import Release
from pytest_amp.known.expected import exceptions_of
from pytest_amp.known.machine import has_property
from pytest_amp.known.rows import Known

if TYPE_CHECKING:
    from pytest_amp.run.tally import TestInfo


def key_of_test(info: TestInfo, parameters: str) -> str:
    """Return the key of a test itself, with its parameters: ``rules/cuda/bf16/test_registered::test_rule[mm]``."""
    device, _, dtype = info.target.rpartition("-")
    key = f"{info.family}/{device}/{dtype}/{info.test}" + (f"[{parameters}]" if parameters else "")
    return "".join(letter if letter.isprintable() else "?" for letter in key)


def matching(
    known: Iterable[Known], keys: Iterable[str], release: Release, device_type: str, precision: str
) -> list[Known]:
    """Return the faults of this release and machine that cover one of ``keys``."""
    listed = list(keys)
    return [
        row
        for row in known
        if any(row.matches(key) for key in listed)
        and row.is_in(release)
        and (row.machine is None or has_property(row.machine, device_type, precision))
    ]


def explains(row: Known, error: BaseException | None) -> bool:
    """Return whether ``error`` is an exception that ``row`` expects; None is a failure without an exception.

    Raises ValueError in one line if the row names no exception.
    """
    if not row.raises or error is None:
        return True
    return isinstance(error, exceptions_of(row))
