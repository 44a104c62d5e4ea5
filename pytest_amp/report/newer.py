"""Remark that torch is newer than the data of this package, shown with each difference on it."""

from __future__ import annotations

from packaging.version import InvalidVersion

from pytest_amp.data_files.releases import release_of
from pytest_amp.rules.spec import load_spec


def last_known() -> str:
    """Return the last release that the data covers, such as ``2.14``."""
    return load_spec().last


def newer_than_known(version: object) -> str | None:
    """Return ``torch 2.15 is newer than what this version knows (2.14)``; None for an older or invalid version."""
    try:
        release = release_of(str(version))
    except InvalidVersion:
        return None
    if release <= release_of(last_known()):
        return None
    return f"torch {release[0]}.{release[1]} is newer than what this version knows ({last_known()})"
