"""Comparison of an observation with an earlier one of the same key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_amp.record import errors
from pytest_amp.record.observation import EXACT, Better, Kind, Observation, Value, Verdict, canonical
from pytest_amp.record.unseen import Relation, relation

#: Ratio of two errors from which the larger one has regressed, if one of them was observed for a single seed. It is the
#: bound between an error and its prediction, which pytest_amp/numerics/tolerance.py documents. For several seeds
#: ``errors`` uses the tensor's own spread instead.
ERROR_RATIO = 1.5
#: Share of the allowed error below which errors are equal: a ratio to an error near zero has no meaning.
NEGLIGIBLE = 0.05
#: Tolerated relative change of a value without a margin of its own. RATIO (a speedup): step times of two processes on
#: one machine differ by up to 6 % (docs/explanation/speed.md). BYTES: allocators round, and libraries choose other
#: workspaces. MEASURE: a user's value, whose meaning is unknown.
MARGINS = {Kind.RATIO: 0.06, Kind.BYTES: 0.02, Kind.MEASURE: 0.05}


#: Verdicts of dtypes. Neither a machine that observes more nor other samples are a change of torch.
_OF_DTYPES = {
    Relation.SAME: Verdict.PASS,
    Relation.UNOBSERVED: Verdict.PASS,
    Relation.OBSERVED: Verdict.OBSERVED,
    Relation.MORE: Verdict.NEW,
    Relation.FEWER: Verdict.INCONCLUSIVE,
    Relation.CHANGED: Verdict.CHANGED,
}


def judged(observation: Observation) -> bool:
    """Return whether ``observation`` is compared: exact kinds, errors, and values with a known direction are."""
    return observation.kind in EXACT or observation.kind is Kind.ERROR or observation.better is not None


def compare(now: Observation, before: Observation | None, *, fair: bool = True) -> Observation:
    """Return ``now`` with the baseline's value and the verdict of the comparison.

    - Without ``before`` the verdict is NEW.
    - CHANGED: the kind differs; or the values differ, and the kind is in EXACT, ``better`` is SAME, or one of them is
      nonfinite. Of dtypes only the part that both machines observed is compared (see ``_OF_DTYPES``).
    - REGRESSED and IMPROVED, for an error: the difference is larger than the spreads over seeds explain (``errors``).
      If one of the two has no values over seeds, their ratio exceeds ERROR_RATIO.
    - REGRESSED and IMPROVED, for a value with a direction (``better``): it changed by more than its margin, or that of
      its kind in MARGINS. Of two intervals, one lies wholly beyond the other, shifted by the margin.
    - INCONCLUSIVE: the intervals are too wide to exclude a regression; or ``before`` has another unit, or no direction,
      as a speedup that was only reported or in doubt; or the value moved and the comparison is not ``fair`` (see
      ``unfair``).

    Otherwise the observation keeps the verdict of its check, which is PASS for a value that did not move.
    """
    if before is None:
        return replace(now, verdict=Verdict.NEW) if now.verdict is Verdict.PASS else now
    same = canonical(now.value) == canonical(before.value)
    if now.kind is Kind.DTYPE and before.kind is Kind.DTYPE and not same:
        return replace(now, verdict=_OF_DTYPES[relation(now.value, before.value)], baseline=before.value)
    exact = now.kind in EXACT or now.better is Better.SAME
    if now.kind is not before.kind or (exact and not same):
        return replace(now, verdict=Verdict.CHANGED, baseline=before.value)
    verdict = now.verdict
    measured_once = same and now.interval == before.interval  # the same record, however wide its intervals are
    if verdict is Verdict.PASS and not exact and judged(now) and not measured_once:
        verdict = _of_errors(now, before) if now.kind is Kind.ERROR else _of_numbers(now, before)
        if not judged(before) or now.unit != before.unit:
            verdict = Verdict.INCONCLUSIVE
        if verdict is not Verdict.PASS and not fair:
            verdict = Verdict.INCONCLUSIVE
    return replace(now, verdict=verdict, baseline=before.value)


def moved(now: Observation, before: Observation) -> str:
    """Return the change of a value and the tolerated one, ``10 % less; allowed 5 %``; "" if there is no such bound."""
    old, value = (
        _number(observation.value) if _is_finite(observation.value) else math.nan for observation in (before, now)
    )
    exact = now.kind in EXACT or now.better is Better.SAME or not judged(now)
    if exact or not math.isfinite(value - old) or not old:
        return ""
    if now.kind is Kind.ERROR:
        draws = _draws(now, before)
        if draws is None:
            return f"{value / old:.3g} times that; allowed {ERROR_RATIO} times"
        factor, most = errors.growth(*draws)
        if factor <= most and _is_beyond(now, before):
            return f"{value / old:.3g} times that, and more than {errors.BEYOND:g} times what was allowed then"
        return f"{factor:.3g} times that over {len(draws[0])} seeds; {most:.3g} times are within their spread"
    margin = MARGINS.get(now.kind, 0.0) if now.margin is None else now.margin
    change = (value - old) / abs(old)
    return f"{100 * abs(change):.3g} % {'less' if change < 0 else 'more'}; allowed {100 * margin:.3g} %"


def _of_errors(now: Observation, before: Observation) -> Verdict:
    (low, high), (old_low, old_high) = (_range(observation) for observation in (now, before))
    if not all(math.isfinite(value) for value in (low, high, old_low, old_high)):
        return Verdict.PASS if canonical(now.value) == canonical(before.value) else Verdict.CHANGED
    draws = _draws(now, before)
    if draws is not None:
        if _grew(*draws) or _is_beyond(now, before):
            return Verdict.REGRESSED
        return Verdict.IMPROVED if _grew(*reversed(draws)) or _is_beyond(before, now) else Verdict.PASS
    least = _negligible(now, before)
    if max(low, least) > ERROR_RATIO * max(old_high, least):
        return Verdict.REGRESSED
    return Verdict.IMPROVED if max(old_low, least) > ERROR_RATIO * max(high, least) else Verdict.PASS


def _grew(before: Sequence[float], now: Sequence[float]) -> bool:
    factor, most = errors.growth(before, now)
    return factor > most


def _is_beyond(one: Observation, other: Observation) -> bool:
    """Return whether the error of ``one`` exceeds BEYOND times both the limit and the error of ``other``."""
    most = max(_finite(other.allowed), _number(other.value))
    return bool(other.allowed) and _number(one.value) > errors.BEYOND * most


def _negligible(now: Observation, before: Observation) -> float:
    return NEGLIGIBLE * max(_finite(now.allowed), _finite(before.allowed))


def _draws(now: Observation, before: Observation) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the errors of ``before`` and ``now`` over seeds, if both have them; negligible ones are made equal."""
    if before.over_seeds is None or now.over_seeds is None or len(before.over_seeds) != len(now.over_seeds):
        return None
    pairs = [*zip(before.over_seeds, now.over_seeds, strict=True), (_number(before.value), _number(now.value))]
    least = _negligible(now, before)
    old, new = ([max(value, least) for value in pair] for pair in zip(*pairs, strict=True))
    return (old, new) if all(0 < value < math.inf for value in (*old, *new)) else None


def _of_numbers(now: Observation, before: Observation) -> Verdict:
    (low, high), (old_low, old_high) = (_range(observation) for observation in (now, before))
    if any(math.isnan(value) for value in (low, old_low)) or not all(map(_is_finite, (now.value, before.value))):
        return Verdict.PASS if canonical(now.value) == canonical(before.value) else Verdict.CHANGED
    if now.better is Better.HIGHER:  # negated, so that lower is better
        low, high, old_low, old_high = -high, -low, -old_high, -old_low
    margin = MARGINS.get(now.kind, 0.0) if now.margin is None else now.margin
    if low > shifted(old_high, margin):
        return Verdict.REGRESSED
    if high < shifted(old_low, -margin):
        return Verdict.IMPROVED
    # Single values always decide; wide intervals may not exclude that the value is worse by more than the margin.
    return Verdict.INCONCLUSIVE if high > shifted(old_low, margin) else Verdict.PASS


def shifted(bound: float, margin: float) -> float:
    """Return an end of an interval, moved by the share ``margin`` of its size; an infinite end is returned unchanged.

    A value has regressed if its interval lies beyond the worst end of the earlier interval, moved by the margin.
    """
    return bound + margin * abs(bound) if math.isfinite(bound) else bound


def _is_finite(value: Value) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(_number(value))


def _number(value: Value) -> float:
    """Return the value as a float; NaN if it is not a number. Nonfinite numbers are text in a file."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _range(observation: Observation) -> tuple[float, float]:
    """Return the interval, or the value at both ends."""
    if observation.interval is not None:
        return observation.interval
    value = _number(observation.value)
    return value, value


def _finite(number: float | None) -> float:
    return number if number is not None and math.isfinite(number) else 0.0


def unfair(old: Mapping[str, Value], new: Mapping[str, Value], device: str) -> str | None:
    """Return why values on ``device`` cannot be compared between runs of these provenances; None if they can.

    A different torch is the purpose of a comparison. Different hardware computes with other kernels, a different seed
    with other values, a different tolerance scale with other bounds.
    """
    for name, words in (("seed", "seed"), ("tolerance_scale", "tolerance scale")):
        known = name == "seed" or (name in old and name in new)
        if known and canonical(old.get(name)) != canonical(new.get(name)):
            return f"{words} {old.get(name)} before, {new.get(name)} now"
    before, now = (device_of(provenance, device) for provenance in (old, new))
    for name in sorted(before.keys() | now.keys()):
        known = name not in ONLY_WHERE_KNOWN or (name in before and name in now)
        if name in HARDWARE and known and canonical(before.get(name)) != canonical(now.get(name)):
            return f"{device}: {name} {before.get(name)} before, {now.get(name)} now"
    return None


def revisions(old: Mapping[str, Value], new: Mapping[str, Value]) -> dict[str, tuple[str, str]]:
    """Return the families with different test revisions, with both; families missing in a provenance are left out."""
    before, now = old.get("revisions"), new.get("revisions")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return {}
    pairs = {family: (str(before[family]), str(now[family])) for family in before.keys() & now.keys()}
    return {family: pair for family, pair in pairs.items() if len(set(pair)) > 1}


#: Provenance of a device that is hardware. Its software (CUDA, cuDNN, driver) is part of an upgrade, and is compared.
HARDWARE = frozenset({"machine", "cpu_capability", "onednn", "gpu", "compute_capability", "accelerator"})
#: Provenance that early records lack: a record without it is still compared.
ONLY_WHERE_KNOWN = frozenset({"onednn"})


def device_of(provenance: Mapping[str, Value], device: str) -> dict[str, Value]:
    """Return a provenance's entry of a device; empty if it has none."""
    devices = provenance.get("devices")
    entry = devices.get(device) if isinstance(devices, dict) else None
    return entry if isinstance(entry, dict) else {}
