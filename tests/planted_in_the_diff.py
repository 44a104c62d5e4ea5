"""Plant each defect, and compare its record with a healthy one: ``python -m tests.planted_in_the_diff HEALTHY REPORT``.

``HEALTHY`` is the record of a green run of all suites on ``cpu,fake:cuda,fake:xpu`` in bf16 and fp16, with the
same torch. ``REPORT`` becomes a JSON list, with an entry for each defect: whether the test that is meant for it is
among what ``pytest-amp diff`` says fails now, what else the diff has, and why.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_amp.record import Record, RecordError, Verdict, difference, read_record
from tests.planted.defect import Defect
from tests.planted.manifest import DEFECTS
from tests.planting import loaded, run, target, where

_AT_ONCE = 2
_TIMEOUT = 180.0


def named(defect: Defect, key: str) -> bool:
    """Whether a failure with this key is that of the test that is meant for the defect."""
    test, _, parameters = defect.failing.partition("[")
    own = re.sub(r"^(fake-)?[a-z]+-(bf16|fp16|fp32|tf32)-?", "", parameters.removesuffix("]"))
    name = key.split("/", 3)[3]
    return f"::{test}" in name and name.partition("[")[2].startswith(own)


def observes(defect: Defect) -> bool:
    """Whether the test that notices it is one of a suite, and so in records."""
    return defect.arguments[0].startswith("suites")


def planted(defect: Defect, healthy: Record) -> dict[str, object]:
    """What the diff with the healthy record says of the defect."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "new.json"
        given = [*loaded(defect), "-p", "no:xdist", "-q", "--tb=no", *target(defect), f"--amp-record={record}"]
        run([*given, *where(defect, defect.failing)], Path(folder) / "output", timeout=_TIMEOUT)
        try:
            found = difference(healthy, read_record(record))
        except RecordError as error:
            return {"defect": defect.module, "named": False, "problem": str(error)}
    failed = [each for each in found.of(Verdict.FAILED) if named(defect, each.key)]
    others = {each.key: each.verdict.value for each in found.observations if each.verdict is not Verdict.FAILED}
    return {
        "defect": defect.module,
        "breaks": defect.breaks,
        "named": bool(failed),
        "before": failed[0].baseline if failed else None,
        "now": failed[0].value if failed else None,
        "failed": len(found.of(Verdict.FAILED)),
        "others": dict(list(others.items())[:10]),
        "not_run_before": found.not_run_before,
    }


def main(arguments: list[str]) -> int:
    """Write the report; 1 where a defect is not in the diff as what it is."""
    healthy = read_record(Path(arguments[0]))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda defect: planted(defect, healthy), filter(observes, DEFECTS)))
    Path(arguments[1]).write_text(json.dumps(found, indent=1), encoding="utf-8")
    missing = [each["defect"] for each in found if not each["named"]]
    sys.stdout.write(f"{len(found)} planted, not in the diff: {missing or 'none'}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
