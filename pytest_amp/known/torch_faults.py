"""Known faults of torch by release: from which release, and up to which, a test of a family is expected to fail.

The test itself declares that it is expected to fail. Changes of a later release are data, in a file beside the packages
of families: a release that fixes or introduces a fault changes no test.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_amp.data_files.releases import Release, holds_in, release_of
from pytest_amp.known.accepted import key_pattern, tables_of

#: Name of the file, in the folder around the packages of families.
FILE = "amp_faults.toml"
_TEXTS = ("key", "reason", "report")
_BOUNDS = ("since", "until")


@dataclass(frozen=True)
class Fault:
    """Fault of torch with the tests that show it; ``key`` is a key of tests, in which ``*`` matches anything.

    With ``until`` alone, tests that are expected to fail do so up to this release, and must pass on a later one. With
    ``since``, tests are expected to fail from this release on, up to ``until`` if given.
    """

    key: str
    reason: str
    report: str
    since: str | None = None
    until: str | None = None

    def is_mended_in(self, release: Release) -> bool:
        """Return whether ``release`` no longer has a fault that the test itself declares."""
        return self.since is None and not holds_in(release, since=None, until=self.until)

    def is_brought_by(self, release: Release) -> bool:
        """Return whether ``release`` has a fault that the test itself does not declare."""
        return self.since is not None and holds_in(release, since=self.since, until=self.until)


@functools.cache
def faults_beside(folder: Path) -> tuple[Fault, ...]:
    """Return the faults in the file beside a family's ``folder``; none where there is no file.

    Raises ValueError in one line that says what is wrong, and where.
    """
    path = folder.parent / FILE
    if not path.is_file():
        return ()
    rows = tables_of(path, "fault", "expected")
    return tuple(_fault(row, f"{path}: [[fault]] number {number}") for number, row in enumerate(rows, start=1))


def _fault(row: dict[str, object], where: str) -> Fault:
    for name in (*_TEXTS, *row):
        value = row.get(name)
        if name not in (*_TEXTS, *_BOUNDS) or not isinstance(value, str) or not value.strip():
            expected = f"text in each of {', '.join(_TEXTS)}, and in since, until or both"
            raise ValueError(f"{where}: {name} is {value!r}; expected {expected}")
    texts = {name: str(value) for name, value in row.items()}
    bounds = [texts[name] for name in _BOUNDS if name in texts]
    if not bounds:
        raise ValueError(f"{where}: neither since nor until; expected a release, such as '2.14'")
    try:
        releases = [release_of(bound) for bound in bounds]
    except ValueError:
        raise ValueError(f"{where}: {' and '.join(bounds)}: no release; expected one such as '2.14'") from None
    if releases != sorted(releases):
        raise ValueError(f"{where}: since {bounds[0]} is later than until {bounds[1]}")
    return Fault(**texts)


def apply(item: pytest.Item, key: str, faults: tuple[Fault, ...], release: Release) -> bool:
    """Add the expected failures that ``release`` introduces to a test, or remove those that it fixes.

    ``key`` is the test's own. Returns whether a fault is fixed: a marker ``amp`` then expects no failure either.
    """
    matching = [fault for fault in faults if key_pattern(fault.key).fullmatch(key)]
    mended = any(fault.is_mended_in(release) for fault in matching)
    if mended:
        item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "xfail"]
    for fault in matching:
        if fault.is_brought_by(release):
            item.add_marker(pytest.mark.xfail(strict=True, reason=f"{fault.report}: {fault.reason}"))
    return mended
