"""Comparison of two observations of dtypes, each of which may be incomplete: a machine cannot observe every call.

An observation is a text of patterns, separated by semicolons. A pattern lists the calls of one sample: those without
autocast, a bar, and those with autocast; ``=`` after the bar means that autocast changes nothing. A call lists the
dtypes of its outputs, separated by commas. A pattern may end with its number of samples:
``fp32 low | = x16; fp32 low | fp32 fp32 x8``.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Placeholder for a dtype, or for all dtypes of a call, that could not be observed on a machine.
UNSEEN = "?"
#: Prefix of a text without dtypes, followed by the reason.
NOT = "not: "
#: Text without dtypes for a reason that lies in the machine or the build of torch. It matches any text.
NOT_HERE = f"{NOT}needs another build or machine"
#: Maximum number of patterns in a text for which counts are compared: ``_fits`` takes exponential time.
_COUNTED = 10
_COUNT = re.compile(r"(.*) x([0-9]+)", re.DOTALL)


class Relation(enum.Enum):
    """Relation of a text to an earlier one."""

    SAME = "the same, as far as both machines could tell"
    OBSERVED = "the same, and something that could not be observed before"
    UNOBSERVED = "the same, without something that could be observed before"
    MORE = "the same of every earlier sample, and more samples"
    FEWER = "the same, of fewer samples"
    CHANGED = "something else"


@dataclass(frozen=True)
class _Pattern:
    calls: tuple[tuple[str, ...], ...]
    count: int | None

    def like(self, other: _Pattern) -> bool:
        """Return whether the calls are equal where both could be observed."""
        return len(self.calls) == len(other.calls) and all(map(_alike, self.calls, other.calls))

    def tells_more(self, other: _Pattern) -> bool:
        """Return whether a dtype is observed here and not in ``other``, which must be ``like`` this pattern."""
        pairs = zip(self.calls, other.calls, strict=True)
        return any(UNSEEN in there and there.count(UNSEEN) > here.count(UNSEEN) for here, there in pairs)


def _alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if (UNSEEN,) in (one, other):
        return True
    return len(one) == len(other) and all(a == b or UNSEEN in (a, b) for a, b in zip(one, other, strict=True))


def relation(now: object, before: object) -> Relation:
    """Return the relation of the text ``now`` to ``before``. An unobserved dtype matches any."""
    if not isinstance(now, str) or not isinstance(before, str):
        return Relation.CHANGED
    if now == before or NOT_HERE in (now, before) or (now.startswith(NOT) and before.startswith(NOT)):
        return Relation.SAME
    if before.startswith(NOT):
        return Relation.OBSERVED
    if now.startswith(NOT):
        return Relation.CHANGED
    new, old = _patterns(now), _patterns(before)
    if not (_covered(new, old) and _covered(old, new)):
        return Relation.CHANGED
    return _by_count(new, old) or _by_what_is_told(new, old)


def loses(now: str, before: str) -> bool:
    """Return whether something observed before is not observed now, for any reason."""
    if now.startswith(NOT) or before.startswith(NOT):
        return now.startswith(NOT) and not before.startswith(NOT)
    new = _patterns(now)
    return any(
        UNSEEN not in itertools.chain(*old.calls)
        and all(old != candidate and old.tells_more(candidate) for candidate in new if candidate.like(old))
        and any(candidate.like(old) for candidate in new)
        for old in _patterns(before)
    )


def without_counts(text: str) -> str:
    """Return the patterns without their numbers of samples."""
    return "; ".join(_COUNT.sub(r"\1", part) for part in text.split("; "))


def _patterns(text: str) -> list[_Pattern]:
    patterns = []
    for part in text.split("; "):
        counted = _COUNT.fullmatch(part)
        pattern, count = (counted[1], int(counted[2])) if counted else (part, None)
        off, bar, on = pattern.partition(" | ")
        calls = [*off.split(" "), *((off if on == "=" else on).split(" ") if bar else ())]
        patterns.append(_Pattern(tuple(tuple(call.split(",")) for call in calls), count))
    return patterns


def _covered(patterns: Sequence[_Pattern], new_patterns: Sequence[_Pattern]) -> bool:
    return all(any(pattern.like(other) for other in new_patterns) for pattern in patterns)


def _by_count(new: Sequence[_Pattern], old: Sequence[_Pattern]) -> Relation | None:
    """Return the relation by counts; None if they show no difference, or if a text has none."""
    counts = [[pattern.count for pattern in group] for group in (new, old)]
    now, before = (sum(count for count in group if count is not None) for group in counts)
    if None in itertools.chain(*counts) or max(map(len, counts)) > _COUNTED:
        return None
    if not (_fits(old, new) if before <= now else _fits(new, old)):
        return Relation.CHANGED
    if before == now:
        return None
    return Relation.MORE if before < now else Relation.FEWER


def _fits(samples: Sequence[_Pattern], places: Sequence[_Pattern]) -> bool:
    """Return whether all samples can be assigned to like patterns in ``places`` within the counts of these.

    This is the condition of Hall's marriage theorem (P. Hall, On representatives of subsets, 1935).
    """
    for size in range(1, len(samples) + 1):
        for group in itertools.combinations(samples, size):
            room = sum(place.count or 0 for place in places if any(map(place.like, group)))
            if sum(sample.count or 0 for sample in group) > room:
                return False
    return True


def _by_what_is_told(new: Sequence[_Pattern], old: Sequence[_Pattern]) -> Relation:
    if _told_for_the_first_time(new, old):
        return Relation.OBSERVED
    return Relation.UNOBSERVED if _told_for_the_first_time(old, new) else Relation.SAME


def _told_for_the_first_time(new: Sequence[_Pattern], old: Sequence[_Pattern]) -> bool:
    """Return whether ``old`` has an incomplete pattern of which every match in ``new`` is more complete."""
    return any(
        all(candidate.tells_more(pattern) for candidate in new if candidate.like(pattern))
        for pattern in old
        if UNSEEN in itertools.chain(*pattern.calls)
    )
