"""What has changed against the known fingerprints, entry by entry."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pytest_amp.fingerprint.dtypes import NOT, matches
from pytest_amp.record import unseen

#: In place of a fingerprint: an entry of which this build or this machine can say nothing.
NOT_HERE = unseen.NOT_HERE


class Change(enum.Enum):
    """What has become of an entry."""

    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True)
class Difference:
    """One entry that is not as it was; ``before`` and ``now`` are fingerprints, or say that there is none."""

    name: str
    change: Change
    before: str
    now: str

    def __str__(self) -> str:
        """In one line."""
        return f"{self.name}: {self.before} -> {self.now}"


def differences(expected: Mapping[str, Collection[str | None]], seen: Mapping[str, str]) -> Iterable[Difference]:
    """What of ``seen`` is not as ``expected`` (see ``Fingerprints.expected``), by name.

    An entry that could not be looked at before, for whatever reason, is NEW once it can; one that could be
    and no longer can is CHANGED.
    """
    for name in sorted(expected.keys() | seen.keys()):
        accepted, now = expected.get(name, (None,)), seen.get(name)
        if any(_same(before, now) for before in accepted):
            continue
        before = " or ".join(sorted(text for text in accepted if text is not None))
        if now is None:
            yield Difference(name, Change.GONE, before, "no such entry")
        elif not before or before.startswith(NOT):
            yield Difference(name, Change.NEW, before or "no such entry", now)
        else:
            yield Difference(name, Change.CHANGED, before, now)


def _same(before: str | None, now: str | None) -> bool:
    if before is None or now is None:
        return before is now
    if NOT_HERE in (before, now) or (before.startswith(NOT) and now.startswith(NOT)):
        return True
    return matches(before, now)
