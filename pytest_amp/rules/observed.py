"""Observed rule of an operator, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass

#: Value of ``ObservedRule.rule`` if no rule fits the observed calls.
UNRECOGNISED = "unrecognised"
#: Value of ``ObservedRule.rule`` if it could not be determined here; ``ObservedRule.reason`` says why.
UNOBSERVED = "unobserved"


@dataclass(frozen=True)
class Evidence:
    """Observation of one variation: autocast's casts, and the dtypes of the result, or the error."""

    variation: str
    casts: tuple[str, ...]
    result: tuple[str, ...]


@dataclass(frozen=True)
class ObservedRule:
    """The observed rule of one overload.

    ``rule`` is a RuleName's value (with `` in float16`` if that is not the autocast dtype), UNRECOGNISED or UNOBSERVED;
    for the latter two ``reason`` says why.
    """

    overload: str
    rule: str
    reason: str | None
    evidence: tuple[Evidence, ...]
