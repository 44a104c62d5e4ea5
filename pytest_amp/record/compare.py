"""The comparison of an observation with an earlier one of the same key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from pytest_amp.record.observation import EXACT, Kind, Observation, Value, Verdict, canonical

#: Two errors that rounding makes in one tensor, from other numbers or by sums in another order, are no further apart:
#: the bound of pytest_amp/numerics/tolerance.py, which says how it was measured. More than that is another computation.
ERROR_RATIO = 1.5
#: Errors below this share of what is allowed are all the same: zero is no measure to divide by.
NEGLIGIBLE = 0.05


def compare(now: Observation, before: Observation | None, *, fair: bool = True) -> Observation:
    """``now`` with the baseline's value and the verdict that follows from it.

    Kinds in EXACT must be equal. An error has regressed, or improved, if it is ERROR_RATIO times the
    earlier one, or one part of it; where the comparison is not ``fair`` (see ``unfair``) that is
    inconclusive. Ratios, times and sizes keep the verdict of their own check. A value that changed its
    kind has changed. Without ``before`` the observation is new.
    """
    if before is None:
        return replace(now, verdict=Verdict.NEW) if now.verdict is Verdict.PASS else now
    if now.kind is not before.kind or (now.kind in EXACT and canonical(now.value) != canonical(before.value)):
        return replace(now, verdict=Verdict.CHANGED, baseline=before.value)
    verdict = now.verdict
    if now.kind is Kind.ERROR and now.verdict is Verdict.PASS:
        verdict = _of_errors(now, before)
        if verdict is not Verdict.PASS and not fair:
            verdict = Verdict.INCONCLUSIVE
    return replace(now, verdict=verdict, baseline=before.value)


def _of_errors(now: Observation, before: Observation) -> Verdict:
    values = [_number(observation.value) for observation in (now, before)]
    if not all(math.isfinite(value) for value in values):
        return Verdict.PASS if canonical(now.value) == canonical(before.value) else Verdict.CHANGED
    least = NEGLIGIBLE * max(now.allowed or 0.0, before.allowed or 0.0)
    this, that = (max(value, least) for value in values)
    if this > ERROR_RATIO * that:
        return Verdict.REGRESSED
    return Verdict.IMPROVED if that > ERROR_RATIO * this else Verdict.PASS


def _number(value: Value) -> float:
    """A number; NaN for what is none. What is not finite is text in a file."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def unfair(old: Mapping[str, Value], new: Mapping[str, Value], device: str) -> str | None:
    """Why errors on ``device`` cannot be compared between runs of these provenances; None if they can.

    Another torch is what a comparison is for. Other hardware computes with other kernels, another seed
    with other numbers.
    """
    if old.get("seed") != new.get("seed"):
        return f"seed {old.get('seed')} before, {new.get('seed')} now"
    before, now = (_device(provenance, device) for provenance in (old, new))
    for name in sorted(before.keys() | now.keys()):
        if name in HARDWARE and canonical(before.get(name)) != canonical(now.get(name)):
            return f"{device}: {name} {before.get(name)} before, {now.get(name)} now"
    return None


#: What of a device's provenance is hardware. Its software (CUDA, cuDNN, driver) comes with an upgrade, and is compared.
HARDWARE = frozenset({"machine", "cpu_capability", "gpu", "compute_capability", "accelerator"})


def _device(provenance: Mapping[str, Value], device: str) -> dict[str, Value]:
    devices = provenance.get("devices")
    found = devices.get(device) if isinstance(devices, dict) else None
    return found if isinstance(found, dict) else {}
