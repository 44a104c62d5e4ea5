"""Plant defects on a device: ``python -m tools.planted_on_device cuda REPORT [FAMILY …] [NAME …]``.

tests/test_planted_defects.py plants them on a CPU. Here the same test must turn red on another device, or the one that
the table names for CUDA. A family is a folder of suites, such as ``scaler``; names select among its defects, or among
all. ``REPORT`` becomes a JSON list, with an entry for each defect: ``noticed`` is null, with a ``reason``, if no test
can notice it on this device, with this release of torch, or on this machine.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pytest_amp.data_files.releases import holds_in, release_of
from tests.planted.table import VARIABLE, Defect, all_defects
from tests.planting import PLUGIN, planting, run, selection

#: Each defect has a process of its own, most of whose time is imports.
_AT_ONCE = max(2, (os.cpu_count() or 2) // 4)
_TIMEOUT = 120.0
#: Line of the plugin's summary about a test that does not exist on the device or on this machine
#: (``Place.unfit`` of pytest_amp/run/parametrization.py). The tier and the speed gate have other reasons.
_UNFIT = re.compile(r"^not run +\d+ \(((?:not for |needs \d+ |the \S+ family does not exist ).*)\)$", re.MULTILINE)


def planted(defect: Defect, device: str) -> dict[str, object]:
    """Plant a defect on a device, and return an entry that says whether the test that is meant for it turned red."""
    test = defect.test_on(device)
    reason = defect.unfit(device) or _too_old(defect)
    if test is None or reason is not None:
        return {"defect": defect.name, "noticed": None, "reason": reason}
    arguments = [*PLUGIN, *planting(defect.name), "-p", "no:xdist", "-q", "-rfE", "--tb=line", *defect.options]
    dtype = "fp16" if f"[{device}-fp16" in test else "bf16"
    speed = [] if defect.family == "speed" else ["--amp-speed=off"]
    arguments += [f"--amp-device={device}", f"--amp-dtype={dtype}", *speed, selection(test)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, VARIABLE: device}
        status, text = run(arguments, Path(folder) / "output", timeout=_TIMEOUT, environment=environment)
    if (reason := deselected(status, text)) is not None:
        return {"defect": defect.name, "test": test, "noticed": None, "reason": reason}
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


def _too_old(defect: Defect) -> str | None:
    """Return a reason if the installed torch is older than the first release on which the defect can be noticed."""
    if not defect.since or holds_in(release_of(torch.__version__), since=defect.since, until=None):
        return None
    return f"its test can notice it since torch {defect.since}, and this is {torch.__version__}"


def deselected(status: int | None, output: str) -> str | None:
    """Return why pytest ran no test, from its exit status and output; None if it ran one, or should have run one."""
    if status != pytest.ExitCode.NO_TESTS_COLLECTED:
        return None
    reasons = _UNFIT.findall(output)
    return "; ".join(reasons) if reasons else None


def main(arguments: list[str]) -> int:
    """Write the report; return 1 if a defect went unnoticed, or if a word is neither a family nor a defect."""
    device, report, *words = arguments
    rows = all_defects()
    families = {row.family for row in rows} & set(words)
    names = set(words) - families
    if unknown := names - {row.name for row in rows}:
        sys.stderr.write(f"no planted defect and no family of them: {', '.join(sorted(unknown))}\n")
        return 1
    rows = [row for row in rows if (not families or row.family in families) and (not names or row.name in names)]
    together = [row for row in rows if row.family != "speed"]
    alone = [row for row in rows if row.family == "speed"]  # other processes on the device would be timed, too
    entries: list[dict[str, object]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = pool.map(lambda row: planted(row, device), together)
        for entry in itertools.chain(results, (planted(row, device) for row in alone)):
            entries.append(entry)
            Path(report).write_text(json.dumps(entries, indent=1), encoding="utf-8")
    without = sum(entry["noticed"] is None for entry in entries)
    unnoticed = [entry["defect"] for entry in entries if entry["noticed"] is False]
    sys.stdout.write(f"{len(entries)} planted, {without} without a test here, unnoticed: {unnoticed or 'none'}\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
