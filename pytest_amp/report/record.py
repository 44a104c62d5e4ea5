"""One record as text."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter

from pytest_amp.record import Observation, Record, Value


def as_text(record: Record, pattern: str | None = None) -> str:
    """Where it comes from, what ran and how much was observed; with a ``pattern`` of keys, those that match."""
    if pattern is not None:
        found = [observation for observation in record.observations if fnmatch.fnmatchcase(observation.key, pattern)]
        return "".join(f"{_line(observation)}\n" for observation in found)
    whole = "" if record.complete else "  (of a run that did not end green or whole)"
    lines = [f"{name}: {_text(value)}" for name, value in record.provenance.items()]
    lines += ["", f"{len(record.observations)} observations{whole}"]
    counts = Counter((observation.family, observation.kind.value) for observation in record.observations)
    lines += [f"  {family}  {count} {kind}" for (family, kind), count in sorted(counts.items())]
    lines += ["", "ran"]
    lines += [f"  {place}  {_counts(value)}" for place, value in record.summary.items()]
    return "\n".join([*lines, ""])


def _line(observation: Observation) -> str:
    unit = f" {observation.unit}" if observation.unit else ""
    allowed = f", allowed {observation.allowed:.4g}" if observation.allowed is not None else ""
    return f"{observation.key}  {_text(observation.value)}{unit}{allowed}  ({observation.verdict.value})"


def _counts(value: Value) -> str:
    return ", ".join(f"{count} {name}" for name, count in value.items()) if isinstance(value, dict) else _text(value)


def _text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
