"""Text of one record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from pytest_amp.record import Observation, Record, Value
from pytest_amp.text.amounts import counted
from pytest_amp.text.quoted import printable


def as_text(record: Record) -> str:
    """Format the provenance, the executed and failed tests, and the number of observations."""
    whole = "" if record.complete else "  (of a run that failed or was incomplete)"
    lines = [f"{name}: {_text(value)}" for name, value in record.provenance.items()]
    lines += ["", f"{counted(len(record.observations), 'observation')}{whole}"]
    counts = Counter((observation.family, observation.kind.value) for observation in record.observations)
    lines += [f"  {family}  {count} {kind}" for (family, kind), count in sorted(counts.items())]
    lines += ["", "ran"]
    lines += [f"  {place}  {_counts(value)}" for place, value in record.summary.items()]
    if record.failures:
        lines += ["", f"failed ({len(record.failures)})"]
        lines += [f"  {failure.key}: {failure.why}" for failure in record.failures]
    return "\n".join([*map(printable, lines), ""])


def as_lines(observations: Iterable[Observation]) -> str:
    """Format observations, one per line."""
    return "".join(f"{printable(_line(observation))}\n" for observation in observations)


def _line(observation: Observation) -> str:
    low_high = "" if observation.interval is None else f" [{', '.join(f'{end:.4g}' for end in observation.interval)}]"
    unit = f" {observation.unit}" if observation.unit else ""
    allowed = f", allowed {observation.allowed:.4g}" if observation.allowed is not None else ""
    seeds = "".join(f", {error:.4g}" for error in observation.over_seeds or ())
    number = f"{_text(observation.value)}{low_high}{seeds}"
    return f"{observation.key}  {number}{unit}{allowed}  ({observation.verdict.value})"


def _counts(value: Value) -> str:
    return ", ".join(f"{count} {name}" for name, count in value.items()) if isinstance(value, dict) else _text(value)


def _text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
