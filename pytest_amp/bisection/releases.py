"""Releases between two versions, from the index or from the wheels in a folder."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version


def listed() -> list[str]:
    """Return the releases of torch that ``pip index versions`` lists. Raises ValueError with pip's last line."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    line = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if line is None:
        why = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()[-1]
        raise ValueError(f"pip cannot list the releases of torch: {why}")
    return [word.strip() for word in line[1].split(",")]


def wheels_in(folder: Path) -> list[str]:
    """Return the versions of the wheels of torch in ``folder``; builds of one version count once. Raises ValueError."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected one with wheels of torch")
    versions = sorted({version for path in folder.glob("torch-*.whl") if (version := _version_of(path))}, key=Version)
    if not versions:
        raise ValueError(f"{folder} has no wheel of torch; expected a folder with torch-*.whl of both releases")
    return versions


def _version_of(wheel: Path) -> str:
    """Return the version in a wheel's file name; empty if it is not a valid name."""
    try:
        return str(parse_wheel_filename(wheel.name)[1])
    except InvalidWheelFilename:
        return ""


def between(old: str, new: str, releases: Iterable[str]) -> list[str]:
    """Return the releases from ``old`` to ``new``, oldest first. Raises ValueError if one is invalid or missing.

    The public release stands for all local builds (``2.13.0+cpu``) if the index has it; pre-releases are left out
    unless they are named.
    """
    if _release(old) >= _release(new):
        raise ValueError(f"{old} is not older than {new}")
    known: dict[str, str] = {}
    for text in sorted(releases, key=Version):
        version = Version(text)
        if not version.is_prerelease or text in (old, new):
            known.setdefault(version.public, text)
    missing = [name for name in (old, new) if Version(name).public not in known]
    if missing:
        near = ", ".join(known.values())
        raise ValueError(f"there is no torch {missing[0]} here; expected {near or 'one of a list, which is empty'}")
    first, last = Version(old).public, Version(new).public
    return [known[public] for public in known if Version(first) <= Version(public) <= Version(last)]


def _release(name: str) -> Version:
    try:
        return Version(name)
    except InvalidVersion:
        raise ValueError(f"{name!r} is not a release, such as 2.13.0") from None
