"""Releases of torch, as data says since when and until when something holds."""

from __future__ import annotations

from packaging.version import Version

Release = tuple[int, int]


def release_of(version: str) -> Release:
    """``(2, 13)`` of ``2.13.0+cu130`` and of ``2.13.0.dev20260101``. Raises packaging's InvalidVersion."""
    release = Version(version).release
    return release[0], release[1] if len(release) > 1 else 0


def holds_in(release: Release, *, since: str | None, until: str | None) -> bool:
    """Whether ``release`` is within the first and the last one that are named; None is no bound."""
    return not (
        (since is not None and release < release_of(since)) or (until is not None and release > release_of(until))
    )
