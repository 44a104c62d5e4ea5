"""Plant defects on a device: ``python -m tools.planted_on_device cuda REPORT [FAMILY …] [NAME …]``.

tests/test_planted_defects.py plants them on a CPU. Here the same test must turn red on another device, or the one that
the table names for CUDA. A family is a folder of suites, such as ``scaler``; names select among its defects, or among
all. ``REPORT`` becomes a JSON list, with an entry for each defect.
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

#: Each defect has a process of its own, most of whose time is imports.
_AT_ONCE = max(2, (os.cpu_count() or 2) // 4)
_TIMEOUT = 120.0


def planted(defect: Defect, device: str) -> dict[str, object]:
    """Plant a defect on a device, and return an entry that says whether the test that is meant for it turned red."""
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
    entry: dict[str, object] = {
        "defect": defect.name,
        "test": test,
        "noticed": noticed,
        "red": len(red),
        "seconds": round(time.monotonic() - started, 1),
    }
    return entry if noticed else {**entry, "output": text[-3000:]}


def main(arguments: list[str]) -> int:
    """Write the report; return 1 if a defect went unnoticed, or if a word is neither a family nor a defect."""
    device, report, *words = arguments
    rows = [row for row in all_defects() if row.device != "cuda" or device == "cuda"]
    families = {row.family for row in rows} & set(words)
    names = set(words) - families
    if unknown := names - {row.name for row in rows}:
        sys.stderr.write(f"no planted defect and no family of them on {device}: {', '.join(sorted(unknown))}\n")
        return 1
    rows = [row for row in rows if (not families or row.family in families) and (not names or row.name in names)]
    entries: list[dict[str, object]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for entry in pool.map(lambda row: planted(row, device), rows):
            entries.append(entry)
            Path(report).write_text(json.dumps(entries, indent=1), encoding="utf-8")
    unnoticed = [entry["defect"] for entry in entries if entry["noticed"] is False]
    sys.stdout.write(f"{len(entries)} planted, unnoticed: {unnoticed or 'none'}\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
