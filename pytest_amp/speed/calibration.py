"""Calibrate the floors (required speedups) from the measurements of several new processes."""

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
    """Error of a run of pytest that has no usable measurements; the message is one line."""


@dataclass(frozen=True)
class Session:
    """Measurements of one process.

    ``ratios`` are the speedups, and ``ceilings`` the speedups that the hardware allows, by workload. ``doubted`` maps
    each workload whose measurement is too unreliable to be used to the reason.
    """

    ratios: Mapping[Key, float]
    ceilings: Mapping[Key, float | None]
    doubted: Mapping[Key, str]
    provenance: Mapping[str, str] = field(default_factory=dict)


def session_of(text: str) -> Session:
    """Parse the measurements of a run: the JSON text of pytest-benchmark, or of a record. Raises CalibrationError.

    A record is the only source under pytest-xdist, where pytest-benchmark writes no times. It has no ceilings. A
    speedup of a record is used only if its test had a verdict on it (see gate.py).
    """
    try:
        data = json.loads(text)
        return _from_record(from_data(data)) if "observations" in data else _from_benchmarks(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrationError(f"no file of pytest-benchmark, and no record, with times: {error!r}") from None


def _from_benchmarks(data: Mapping[str, Any]) -> Session:
    measurements = [
        measurement
        for benchmark in data["benchmarks"]
        for measurement in benchmark["extra_info"].get("amp", {}).values()
    ]
    machine = data["machine_info"].get("amp", {})
    entries = [(_key(measurement), measurement) for measurement in measurements]
    sound = [(key, measurement) for key, measurement in entries if not measurement["doubts"]]
    return Session(
        ratios={key: float(measurement["ratio"]) for key, measurement in sound},
        ceilings={key: measurement["ceiling"] for key, measurement in sound},
        doubted={key: measurement["doubts"][0] for key, measurement in entries if measurement["doubts"]},
        provenance=_provenance(machine),
    )


def _from_record(record: Record) -> Session:
    devices: Any = record.provenance["devices"]
    sound, doubted = {}, {}
    for observation in record.observations:
        parts = observation.key.rsplit("/", 3)
        if len(parts) < 4 or parts[3] != "speedup" or not parts[1].startswith("over-"):
            continue
        _, device, precision, work = parts[0].split("/", 3)
        key = (str(devices[device].get("gpu", device)), parts[1].removeprefix("over-"), precision, work, parts[2])
        # The check records a direction (``better``) only if it has a verdict on the speedup.
        if observation.better is not None and isinstance(observation.value, (int, float)):
            sound[key] = float(observation.value)
        else:
            doubted[key] = "the record's gate did not judge it"
    return Session(sound, dict.fromkeys(sound), doubted, _provenance(record.provenance))


def _key(measurement: Mapping[str, Any]) -> Key:
    names = ("device", "over", "precision", "work", "kind")
    gpu, over, precision, work, kind = (str(measurement[name]) for name in names)
    return gpu, over, precision, work, kind


def _provenance(machine: Mapping[str, Any]) -> dict[str, str]:
    devices = machine.get("devices", {})
    device: Mapping[str, Any] = next((entry for entry in devices.values() if "gpu" in entry), {})
    named = {name: str(device.get(name, "unknown")) for name in ("cuda", "cudnn", "driver")}
    return {"torch": str(machine.get("torch", "unknown")), **named}


def rows(sessions: Sequence[Session], *, least: int) -> tuple[list[Row], list[str]]:
    """Return a row for each workload that at least ``least`` sessions measured reliably, and a message for the rest."""
    calibrated, left_out = [], []
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    for key in sorted({key for session in sessions for key in (*session.ratios, *session.doubted)}):
        ratios = [session.ratios[key] for session in sessions if key in session.ratios]
        if len(ratios) < least:
            reason = next((session.doubted[key] for session in sessions if key in session.doubted), "not measured")
            left_out.append(f"{' '.join(key)}: sound in {len(ratios)} of {len(sessions)} processes ({reason})")
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
    """Format the rows as a table with the median, the spread between processes, and the floor."""
    width = max((len(row.work) for row in rows), default=4)
    lines = [f"{'work':<{width}}  kind    dtype  over  median  spread   floor"]
    lines += [
        f"{row.work:<{width}}  {row.kind:<6}  {row.dtype:<5}  {row.over:<4}  {row.median:6.3f}  {row.spread:6.2%}  "
        f"{row.floor:6.3f}"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
