"""Plant each defect, and compare its record with a healthy one.

``python -m tools.planted_in_the_diff FOLDER [DEFECT …]``: record in ``FOLDER`` the tests that are meant for defects
without any, once for each device and dtype, unless the record exists; then plant, record and compare each defect (or
those named). ``report.json`` has an entry for each: whether its test is among the failures of ``pytest-amp diff``, its
outcome before, further differences, and reasons. A defect in the report is not planted again, so that a run may be
resumed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_amp.record import Record, RecordError, Verdict, difference, read_record
from tests.planted.table import Defect, all_defects
from tests.planting import PLUGIN, planting, run, selection, target

_AT_ONCE = 2
#: Time limits in seconds, of the guards of one target, and of one defect's.
_HEALTHY, _PLANTED = 7200.0, 300.0


def place(defect: Defect) -> str:
    """Return the name in the folder of a defect's device, dtype and further options."""
    words = [defect.device, defect.dtype, *(option.removeprefix("--amp-") for option in defect.options)]
    return "-".join(re.sub(r"\W", "-", word) for word in words)


def guards(defects: Iterable[Defect], folder: Path) -> dict[str, Record]:
    """Record the tests that are meant for the defects without any, unless that is done; return the records by place."""
    places: dict[str, list[Defect]] = {}
    for defect in defects:
        places.setdefault(place(defect), []).append(defect)
    for name, rows in places.items():
        if not (folder / f"{name}.json").exists():
            tests = {row.test.partition("[")[0] for row in rows}
            arguments = [*PLUGIN, "-p", "no:xdist", "-q", "--tb=short", *target(rows[0]), *rows[0].options]
            arguments += [f"--amp-record={folder / name}.json", *sorted(tests)]
            run(arguments, folder / f"{name}.log", timeout=_HEALTHY)
    return {name: read_record(folder / f"{name}.json") for name in places}


def planted(defect: Defect, healthy: Record, folder: Path) -> dict[str, object]:
    """Plant a defect, and return the entry of its difference from the healthy record."""
    record = folder / f"planted-{defect.name}.json"
    record.unlink(missing_ok=True)
    arguments = [*PLUGIN, *planting(defect.name), "-p", "no:xdist", "-q", "--tb=no", *target(defect), *defect.options]
    arguments += [f"--amp-record={record}", selection(defect.test)]
    run(arguments, folder / f"planted-{defect.name}.log", timeout=_PLANTED)
    try:
        result = difference(healthy, read_record(record))
    except RecordError as error:
        return {"defect": defect.name, "named": False, "problem": str(error)}
    failed = [item for item in result.of(Verdict.FAILED) if defect.is_named_by(item.key)]
    verdicts = {item.key: item.verdict.value for item in result.observations if item.verdict is not Verdict.FAILED}
    return {
        "defect": defect.name,
        "breaks": defect.breaks,
        "named": bool(failed),
        "before": failed[0].baseline if failed else None,
        "now": failed[0].value if failed else None,
        "failed": len(result.of(Verdict.FAILED)),
        "verdicts": Counter(verdicts.values()),
        "others": dict(list(verdicts.items())[:10]),
        "not_run_before": result.not_run_before,
    }


def main(arguments: list[str]) -> int:
    """Write the report; return 1 if a difference does not name a defect's test among the new failures."""
    folder, only = Path(arguments[0]), arguments[1:]
    folder.mkdir(exist_ok=True)
    report = folder / "report.json"
    entries = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
    known = {entry["defect"] for entry in entries}
    defects = [row for row in all_defects() if row.is_recorded and row.device != "cuda" and row.name not in known]
    defects = [row for row in defects if not only or row.name in only]
    healthy = guards(defects, folder)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for entry in pool.map(lambda defect: planted(defect, healthy[place(defect)], folder), defects):
            entries.append(entry)
            report.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    missing = [entry["defect"] for entry in entries if not entry["named"]]
    sys.stdout.write(f"{len(entries)} planted, not in the diff: {missing or 'none'}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
