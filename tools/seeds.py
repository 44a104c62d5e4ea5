"""Run the gate with many seeds: ``python -m tools.seeds --seeds 0-19,101-120 -- suites -n 2 --amp-device=cpu``.

A check that is red with only some seeds judges its random values. Each seed leaves its results in FOLDER
(``seed-7.xml``), and a seed with results is not run again, so that an interrupted run resumes. Without a failure the
table bounds the rate of false alarms: after n runs it is below 3 / n with a confidence of 95 % (Hanley and
Lippman-Hand, JAMA 249, 1983).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.project import INSTALLED, ROOT

DEFAULT = ["suites", "-n", "2", "--amp-device=cpu", "--amp-dtype=bf16,fp16", "--amp-tier=all"]


@dataclass(frozen=True)
class SeedResult:
    """Number of tests that ran with a seed, and the names of those that failed."""

    seed: int
    tests: int
    failed: tuple[str, ...]


def seeds_of(text: str) -> list[int]:
    """Return the seeds of ``0-19,101``; raises ValueError for anything else."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def read(path: Path, seed: int) -> SeedResult:
    """Return the result in a JUnit file."""
    failed, tests = [], 0
    for case in ET.parse(path).iter("testcase"):  # noqa: S314  # pytest wrote it
        tests += 1
        if any(child.tag in {"failure", "error"} for child in case):
            failed.append(f"{case.get('classname')}::{case.get('name')}")
    return SeedResult(seed, tests, tuple(sorted(failed)))


def run(seed: int, arguments: list[str], folder: Path) -> SeedResult:
    """Run the gate with a seed, unless it has left its results."""
    path, unfinished = folder / f"seed-{seed}.xml", folder / f"seed-{seed}.unfinished"
    if not path.exists():
        plugin = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
        command = [sys.executable, "-m", "pytest", *plugin, "-q", "-p", "no:cacheprovider", "--tb=short"]
        with (folder / f"seed-{seed}.log").open("w", encoding="utf-8") as log:
            command += [f"--amp-seed={seed}", f"--junitxml={unfinished}", *arguments]
            status = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"seed {seed}: pytest ended with {status}; see {log.name}")
        unfinished.rename(path)
    return read(path, seed)


def table(results: list[SeedResult]) -> str:
    """Return the table in Markdown: a row for each test that failed, and the bound if none did."""
    failed = Counter(name for result in results for name in result.failed)
    seeds = {name: [result.seed for result in results if name in result.failed] for name in failed}
    lines = [f"{len(results)} seeds, {sum(result.tests for result in results)} tests.", ""]
    if not failed:
        return "\n".join([*lines, f"No failure: a run has a false alarm in less than {3 / len(results):.2%}.", ""])
    lines += ["| test | failed with seeds |", "| --- | --- |"]
    lines += [f"| `{name}` | {', '.join(map(str, seeds[name]))} |" for name, _ in failed.most_common()]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """Run every seed, report each, and print the table."""
    parser = argparse.ArgumentParser("tools.seeds", description="Run the gate with many seeds.")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-19,101-120"))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "seeds")
    parser.add_argument("pytest", nargs="*", default=DEFAULT)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for seed in options.seeds:
        results.append(run(seed, options.pytest, options.folder))
        failed = ", ".join(results[-1].failed) or "none failed"
        sys.stdout.write(f"seed {seed}: {results[-1].tests} tests, {failed}\n")
        sys.stdout.flush()
    sys.stdout.write("\n" + table(results))
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
