"""Plant each defect, and compare its record with a healthy one.

``python -m tests.planted_in_the_diff FOLDER [DEFECT …]``: in ``FOLDER``, the tests that are meant for defects are
recorded without any, once for each device and dtype, unless that is there; then each defect (or those named) is
planted, recorded, and compared. ``report.json`` has an entry for each: whether the test that is meant for it is among
what ``pytest-amp diff`` says fails now, what it did before, what else the diff has, and why. A defect that is in the
report is not planted again, so that a run may come in pieces.
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
#: In seconds, of the guards of one target, and of one defect's.
_HEALTHY, _PLANTED = 7200.0, 300.0


def named(defect: Defect, key: str) -> bool:
    """Whether a failure with this key is that of the test that is meant for the defect."""
    test, _, parameters = defect.test.partition("::")[2].partition("[")
    own = re.sub(r"^(fake-)?[a-z]+-(bf16|fp16|fp32|tf32)-?", "", parameters.removesuffix("]"))
    name = key.split("/", 3)[3]
    return f"::{test}" in name and name.partition("[")[2].startswith(own)


def observes(defect: Defect) -> bool:
    """Whether the test that notices it is one of a suite, and so in records."""
    return defect.test.startswith("suites")


def place(defect: Defect) -> str:
    """Return the name of a defect's device and dtype in the folder."""
    return f"{defect.device.replace(':', '-')}-{defect.dtype}"


def guards(defects: Iterable[Defect], folder: Path) -> dict[str, Record]:
    """By place, the record of the tests that are meant for the defects, without any."""
    found: dict[str, list[Defect]] = {}
    for defect in defects:
        found.setdefault(place(defect), []).append(defect)
    for name, those in found.items():
        if not (folder / f"{name}.json").exists():
            tests = {defect.test.partition("[")[0] for defect in those}
            options = {option for defect in those for option in defect.options}
            arguments = [*PLUGIN, "-p", "no:xdist", "-q", "--tb=short", *target(those[0]), *sorted(options)]
            arguments += [f"--amp-record={folder / name}.json", *sorted(tests)]
            run(arguments, folder / f"{name}.log", timeout=_HEALTHY)
    return {name: read_record(folder / f"{name}.json") for name in found}


def planted(defect: Defect, healthy: Record, folder: Path) -> dict[str, object]:
    """What the diff with the healthy record says of the defect."""
    record = folder / f"planted-{defect.name}.json"
    record.unlink(missing_ok=True)
    arguments = [*PLUGIN, *planting(defect.name), "-p", "no:xdist", "-q", "--tb=no", *target(defect), *defect.options]
    arguments += [f"--amp-record={record}", selection(defect.test)]
    run(arguments, folder / f"planted-{defect.name}.log", timeout=_PLANTED)
    try:
        found = difference(healthy, read_record(record))
    except RecordError as error:
        return {"defect": defect.name, "named": False, "problem": str(error)}
    failed = [each for each in found.of(Verdict.FAILED) if named(defect, each.key)]
    others = {each.key: each.verdict.value for each in found.observations if each.verdict is not Verdict.FAILED}
    return {
        "defect": defect.name,
        "breaks": defect.breaks,
        "named": bool(failed),
        "before": failed[0].baseline if failed else None,
        "now": failed[0].value if failed else None,
        "failed": len(found.of(Verdict.FAILED)),
        "verdicts": Counter(others.values()),
        "others": dict(list(others.items())[:10]),
        "not_run_before": found.not_run_before,
    }


def main(arguments: list[str]) -> int:
    """Write the report; 1 where a defect is not in the diff as what it is."""
    folder, only = Path(arguments[0]), arguments[1:]
    folder.mkdir(exist_ok=True)
    report = folder / "report.json"
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
    known = {each["defect"] for each in found}
    wanted = [row for row in all_defects() if observes(row) and row.device != "cuda" and row.name not in known]
    wanted = [row for row in wanted if not only or row.name in only]
    healthy = guards(wanted, folder)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for entry in pool.map(lambda defect: planted(defect, healthy[place(defect)], folder), wanted):
            found.append(entry)
            report.write_text(json.dumps(found, indent=1), encoding="utf-8")
    missing = [each["defect"] for each in found if not each["named"]]
    sys.stdout.write(f"{len(found)} planted, not in the diff: {missing or 'none'}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
