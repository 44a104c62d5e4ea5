"""Differences from the known fingerprints, entry by entry."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pytest_amp.record import unseen
from pytest_amp.record.unseen import Relation, relation

#: In place of a fingerprint: an entry that cannot be observed with this build or on this machine.
NOT_HERE = unseen.NOT_HERE


class Change(enum.Enum):
    """Kind of a difference of an entry."""

    CHANGED = "changed"
    OBSERVED = "could not be observed before"
    SAMPLES = "other samples"
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True)
class Difference:
    """Difference of one entry; ``before`` and ``now`` are fingerprints, or say that there is none."""

    name: str
    change: Change
    before: str
    now: str

    def __str__(self) -> str:
        """Return the difference in one line."""
        return f"{self.name}: {self.before} -> {self.now}"


#: The kind of a difference by the relation of a fingerprint to the earlier one; other relations are no difference.
_CHANGES = {
    Relation.OBSERVED: Change.OBSERVED,
    Relation.MORE: Change.SAMPLES,
    Relation.FEWER: Change.SAMPLES,
    Relation.CHANGED: Change.CHANGED,
}
_BEST_FIRST = tuple(Relation)


def differences(expected: Mapping[str, Collection[str | None]], observed: Mapping[str, str]) -> Iterable[Difference]:
    """Yield the differences of ``observed`` from ``expected`` (see ``Fingerprints.expected``), by name.

    An entry that could not be observed before, for whatever reason, is OBSERVED once it can be; an entry that could be
    observed and no longer can is CHANGED.
    """
    for name in sorted(expected.keys() | observed.keys()):
        accepted, now = expected.get(name, (None,)), observed.get(name)
        if now is None and None in accepted:
            continue
        texts = sorted(text for text in accepted if text is not None)
        before = " or ".join(texts)
        if now is None:
            yield Difference(name, Change.GONE, before, "no such entry")
        elif not texts:
            yield Difference(name, Change.NEW, "no such entry", now)
        else:
            nearest = min((relation(now, text) for text in texts), key=_BEST_FIRST.index)
            if nearest in _CHANGES:
                yield Difference(name, _CHANGES[nearest], before, now)
