"""Run the suites on the CPU many times in one process: ``python -m tools.soak --times 20 suites``.

Each run must be green and have the observations of the first (no flake), and after the first runs have filled all
caches, the process must not grow by more than some memory, threads and open files a run (no leak). Each run imports the
modules of the tests again, which itself costs memory: ALLOWED is that amount, with a margin.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_amp.record import EXACT, read_record
from tests.project import INSTALLED

#: The first runs import, compile and cache.
WARM_UP = 2
#: Megabytes that a run may add on average, after the warm-up.
ALLOWED = 12.0


@dataclass(frozen=True)
class Usage:
    """Resources of the process."""

    megabytes: float
    threads: int
    files: int


def usage() -> Usage:
    """Return peak resident memory so far, threads and open files now. Not on Windows."""
    scale = 2**20 if sys.platform == "darwin" else 2**10
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
    return Usage(round(megabytes, 1), threading.active_count(), sum(map(_is_open, range(4096))))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def run(tests: list[str], record: Path) -> tuple[int, dict[str, object]]:
    """Run once; return pytest's status and the exact observations."""
    loaded = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
    arguments = [*loaded, "-q", "-p", "no:cacheprovider", "--no-header", "--amp-device=cpu", f"--amp-record={record}"]
    status = int(pytest.main([*arguments, *tests]))
    observations = read_record(record).observations if record.exists() else ()
    return status, {observation.key: observation.value for observation in observations if observation.kind in EXACT}


def problems(statuses: list[int], observed: list[dict[str, object]], used: list[Usage]) -> list[str]:
    """Return the problems of these runs, a line each."""
    actual = [f"run {number}: pytest ended with {status}" for number, status in enumerate(statuses, 1) if status]
    for number, values in enumerate(observed[1:], 2):
        different = sorted(key for key in {*values, *observed[0]} if values.get(key) != observed[0].get(key))
        actual += [f"run {number}: {len(different)} facts differ from the first, {different[0]}"] if different else []
    late = used[WARM_UP:]
    if len(late) > 1:
        growth = (late[-1].megabytes - late[0].megabytes) / (len(late) - 1)
        actual += [f"memory grows by {growth:.1f} MB a run"] if growth > ALLOWED else []
        for name in ("threads", "files"):
            first, last = getattr(late[0], name), getattr(late[-1], name)
            actual += [f"{name}: {first} after {WARM_UP + 1} runs, {last} after {len(used)}"] if last > first else []
    return actual


def main(arguments: list[str]) -> int:
    """Run, report each, and judge."""
    parser = argparse.ArgumentParser("tools.soak", description="The suites on the CPU, many times in one process.")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("tests", nargs="*", default=["suites"])
    options = parser.parse_args(arguments)
    statuses, observed, used = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, options.times + 1):
            status, values = run(options.tests, Path(folder, f"{number}.json"))
            statuses.append(status)
            observed.append(values)
            used.append(usage())
            sys.stdout.write(f"soak {number} of {options.times}: status {status}, {len(values)} facts, {used[-1]}\n")
            sys.stdout.flush()
    actual = problems(statuses, observed, used)
    sys.stdout.write("".join(f"SOAK {line}\n" for line in actual) or f"soak: {options.times} runs, no flake, no leak\n")
    return 1 if actual else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
