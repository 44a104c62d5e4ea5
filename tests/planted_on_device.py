"""Plant the defects of some families on a device: ``python -m tests.planted_on_device cuda REPORT FAMILY … [NAME …]``.

tests/test_planted_defects.py plants them on a CPU. Here the same test must turn red on another device, or the one that
the table names for CUDA. A family is a folder of suites, ``scaler`` say; with names only those defects of it are
planted. ``REPORT`` becomes a JSON list, with an entry for each defect.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.planted.table import VARIABLE, Defect, all_defects
from tests.planting import PLUGIN, planting, run, selection

_AT_ONCE = 2
_TIMEOUT = 120.0


def planted(defect: Defect, device: str) -> dict[str, object]:
    """Whether the test that is meant for the defect turned red there."""
    test = defect.test_on(device)
    if test is None:
        return {"defect": defect.name, "noticed": None}
    arguments = [*PLUGIN, *planting(defect.name), "-p", "no:xdist", "-q", "-rfE", "--tb=line", *defect.options]
    dtype = "fp16" if f"[{device}-fp16" in test else "bf16"
    speed = [] if defect.family == "speed" else ["--amp-speed=off"]
    arguments += [f"--amp-device={device}", f"--amp-dtype={dtype}", *speed, selection(test)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, VARIABLE: device}
        status, text = run(arguments, Path(folder) / "output", timeout=_TIMEOUT, environment=environment)
    red = [line for line in text.splitlines() if re.match("FAILED |ERROR ", line)]
    noticed = status == pytest.ExitCode.TESTS_FAILED and any(test in line for line in red)
    found: dict[str, object] = {
        "defect": defect.name,
        "test": test,
        "noticed": noticed,
        "red": len(red),
        "seconds": round(time.monotonic() - started, 1),
    }
    return found if noticed else {**found, "output": text[-3000:]}


def main(arguments: list[str]) -> int:
    """Write the report; 1 where a defect went unnoticed."""
    device, report, *words = arguments
    rows = all_defects()
    families = {row.family for row in rows} & set(words)
    names = set(words) - families
    defects = [row for row in rows if row.family in families and (not names or row.name in names)]
    defects = [row for row in defects if row.device != "cuda" or device == "cuda"]
    found: list[dict[str, object]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in pool.map(lambda defect: planted(defect, device), defects):
            found.append(each)
            Path(report).write_text(json.dumps(found, indent=1), encoding="utf-8")
    unnoticed = [each["defect"] for each in found if each["noticed"] is False]
    sys.stdout.write(f"{len(found)} planted, unnoticed: {unnoticed or 'none'}\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
