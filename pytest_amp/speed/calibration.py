"""Calibration of floors from the measurements of several fresh processes."""

from __future__ import annotations

import datetime as dt
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_amp.floors import SHARES, Key, Row
from pytest_amp.record import Record, from_data


class CalibrationError(ValueError):
    """Run of pytest without usable measurements; the message is one line."""


@dataclass(frozen=True)
class Session:
    """Measurements of one process.

    ``ratios`` and ``ceilings`` are the speedups and their upper bounds by workload. ``doubted`` maps the workloads
    whose measurements are not used to the reason.
    """

    ratios: Mapping[Key, float]
    ceilings: Mapping[Key, float | None]
    doubted: Mapping[Key, str]
    provenance: Mapping[str, str] = field(default_factory=dict)


def session_of(text: str) -> Session:
    """Read the measurements of a run from pytest-benchmark's JSON file, or from a record. Raises CalibrationError.

    Under pytest-xdist, pytest-benchmark writes no times, but a record has them. A record has no ceilings, and only
    those of its speedups are used that a gate judged.
    """
    try:
        data = json.loads(text)
        return _of_record(from_data(data)) if "observations" in data else _of_benchmarks(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrationError(f"no file of pytest-benchmark, and no record, with times: {error!r}") from None


def _of_benchmarks(data: Mapping[str, Any]) -> Session:
    rows_of_amp = [facts for row in data["benchmarks"] for facts in row["extra_info"].get("amp", {}).values()]
    machine = data["machine_info"].get("amp", {})
    keys = [_key(facts) for facts in rows_of_amp]
    sound = [(key, facts) for key, facts in zip(keys, rows_of_amp, strict=True) if not facts["doubts"]]
    return Session(
        ratios={key: float(facts["ratio"]) for key, facts in sound},
        ceilings={key: facts["ceiling"] for key, facts in sound},
        doubted={key: facts["doubts"][0] for key, facts in zip(keys, rows_of_amp, strict=True) if facts["doubts"]},
        provenance=_provenance(machine),
    )


def _of_record(record: Record) -> Session:
    devices: Any = record.provenance["devices"]
    sound, doubted = {}, {}
    for observation in record.observations:
        parts = observation.key.rsplit("/", 3)
        if len(parts) < 4 or parts[3] != "speedup" or not parts[1].startswith("over-"):
            continue
        _, device, precision, work = parts[0].split("/", 3)
        key = (str(devices[device].get("gpu", device)), parts[1].removeprefix("over-"), precision, work, parts[2])
        # A gate records a direction (``better``) only with a speedup that it could judge.
        if observation.better is not None and isinstance(observation.value, (int, float)):
            sound[key] = float(observation.value)
        else:
            doubted[key] = "the record's gate did not judge it"
    return Session(sound, dict.fromkeys(sound), doubted, _provenance(record.provenance))


def _key(facts: Mapping[str, Any]) -> Key:
    gpu, over, precision, work, kind = (str(facts[n]) for n in ("device", "over", "precision", "work", "kind"))
    return gpu, over, precision, work, kind


def _provenance(machine: Mapping[str, Any]) -> dict[str, str]:
    devices = machine.get("devices", {})
    device: Mapping[str, Any] = next((entry for entry in devices.values() if "gpu" in entry), {})
    named = {name: str(device.get(name, "unknown")) for name in ("cuda", "cudnn", "driver")}
    return {"torch": str(machine.get("torch", "unknown")), **named}


def rows(sessions: Sequence[Session], *, least: int) -> tuple[list[Row], list[str]]:
    """Return a row for each workload with at least ``least`` sound sessions, and a message for each other workload."""
    calibrated, left_out = [], []
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    for key in sorted({key for session in sessions for key in (*session.ratios, *session.doubted)}):
        ratios = [session.ratios[key] for session in sessions if key in session.ratios]
        if len(ratios) < least:
            why = next((session.doubted[key] for session in sessions if key in session.doubted), "not measured")
            left_out.append(f"{' '.join(key)}: sound in {len(ratios)} of {len(sessions)} processes ({why})")
            continue
        median = statistics.median(ratios)
        ceiling = next((session.ceilings[key] for session in sessions if session.ceilings.get(key)), None)
        floor = SHARES[key[4]] * median
        calibrated.append(
            Row(
                *key,
                floor=round(min(floor, ceiling) if ceiling else floor, 4),
                median=round(median, 4),
                spread=round(statistics.stdev(ratios) / statistics.mean(ratios), 5),
                sessions=len(ratios),
                date=today,
                **sessions[0].provenance,
            )
        )
    return calibrated, left_out


def as_text(rows: Sequence[Row]) -> str:
    """Format a table of the rows: median, spread between processes, floor."""
    width = max((len(row.work) for row in rows), default=4)
    lines = [f"{'work':<{width}}  kind    dtype  over  median  spread   floor"]
    lines += [
        f"{row.work:<{width}}  {row.kind:<6}  {row.dtype:<5}  {row.over:<4}  {row.median:6.3f}  {row.spread:6.2%}  "
        f"{row.floor:6.3f}"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
