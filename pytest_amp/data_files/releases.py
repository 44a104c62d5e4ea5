"""Releases of torch, as bounds in data files."""

from __future__ import annotations

import functools
from importlib import metadata

from packaging.version import Version

Release = tuple[int, int]


@functools.cache
def release_of(version: str) -> Release:
    """Return ``(2, 13)`` for ``2.13.0+cu130`` and ``2.13.0.dev20260101``. Raises packaging's InvalidVersion."""
    release = Version(version).release
    return release[0], release[1] if len(release) > 1 else 0


def holds_in(release: Release, *, since: str | None, until: str | None) -> bool:
    """Return whether ``release`` is within the named first and last one; None is not a bound."""
    return not (
        (since is not None and release < release_of(since)) or (until is not None and release > release_of(until))
    )


def installed_torch() -> str:
    """Return the installed version of torch, without importing it; a build that was never installed has none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "not installed"
