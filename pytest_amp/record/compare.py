"""The comparison of an observation with an earlier one of the same key."""

from __future__ import annotations

from dataclasses import replace

from pytest_amp.record.observation import EXACT, Observation, Verdict, canonical


def compare(now: Observation, before: Observation | None) -> Observation:
    """``now`` with the baseline's value and the verdict that follows from it.

    Kinds in EXACT must be equal. Errors, ratios, times and sizes differ from run to run and need
    statistics; they keep the verdict of their own check, beside the baseline's value. A value that
    changed its kind has changed. Without ``before`` the observation is new.
    """
    if before is None:
        return replace(now, verdict=Verdict.NEW) if now.verdict is Verdict.PASS else now
    if now.kind is not before.kind or (now.kind in EXACT and canonical(now.value) != canonical(before.value)):
        return replace(now, verdict=Verdict.CHANGED, baseline=before.value)
    return replace(now, baseline=before.value)
