"""Small user project, in which pytest runs with the plugin."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_amp.record import table
from tests.forked import run_pytest

#: Seconds that a run of pytest may take.
TIMEOUT = 300.0

ROOT = Path(__file__).resolve().parent.parent

#: True if the plugin's distribution is installed: then pytest loads it by its entry point, and -p would load it twice.
INSTALLED = any(entry.name == "amp" for entry in metadata.entry_points(group="pytest11"))

#: Options of a run on the CPU in one dtype.
ON_CPU = ("--amp-device=cpu", "--amp-dtype=bf16")

#: A conftest.py that registers an accelerator which is the CPU under another name. Text that follows may
#: define methods of the class (indented) and then anything else.
SIMULATED = """
import torch
from pytest_amp.devices import DeviceType
from pytest_amp.devices.accelerator import AcceleratorDevice


def pytest_amp_devices():
    yield DeviceType("simulated", Simulated)


class Simulated(AcceleratorDevice):
    def __init__(self, index=None):
        super().__init__("simulated", index)

    @property
    def torch_device(self):
        return torch.device("cpu")

    def autocast(self, dtype, *, enabled=True, cache_enabled=True):
        return torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache_enabled)

    def synchronize(self):
        pass
"""

#: Methods for SIMULATED: it computes in bf16 only.
WITHOUT_FP16 = """
    def autocast(self, dtype, *, enabled=True, cache_enabled=True):
        if dtype == torch.float16:
            raise RuntimeError("no fp16 in this silicon")
        return torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache_enabled)
"""


class Project:
    """Files, and runs of pytest in their folder."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path

    def write(self, **sources: str) -> None:
        """Write Python files by name, without the ending."""
        self.pytester.makepyfile(**sources)

    def file(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def here(self, *arguments: str) -> pytest.RunResult:
        """Run in this process, which has already imported torch: fast, but not for runs that leave state behind."""
        return self.pytester.runpytest_inprocess(*self._loaded(arguments))

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run in this process without workers of xdist, in an interpreter of its own with them."""
        return self.fresh(*arguments) if _has_workers(arguments) else self.here(*arguments)

    def apart(self, *arguments: str) -> pytest.RunResult:
        """Run in a process of its own.

        Without workers of xdist it is forked from one that has imported torch; with them, it never imports torch.
        """
        if _has_workers(arguments):
            return self.fresh(*arguments)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=self.path, prefix="apart-") as folder:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            status = run_pytest(
                [f"--basetemp={Path(folder, 'temporary')}", *self._loaded(arguments)],
                Path.cwd(),
                output,
                errors=errors,
                timeout=TIMEOUT,
                environment=os.environ,
            )
            texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in (output, errors)]
        sys.stdout.write(texts[0])
        sys.stderr.write(texts[1])
        if status is None:
            raise self.pytester.TimeoutExpired(f"{TIMEOUT:g} second timeout expired running: pytest {arguments}")
        return pytest.RunResult(status, texts[0].splitlines(), texts[1].splitlines(), time.perf_counter() - start)

    def fresh(self, *arguments: str) -> pytest.RunResult:
        """Run in an interpreter of its own, which imports everything again."""
        return self.pytester.runpytest_subprocess(*self._loaded(arguments), timeout=TIMEOUT)

    @staticmethod
    def _loaded(arguments: tuple[str, ...]) -> list[str]:
        plugin = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
        # Hypothesis is imported again by its plugin's summary in each run, which takes longer than the rest.
        disabled = ("no:hypothesispytest", "no:pytest_cov")
        return [*plugin, *(word for name in disabled for word in ("-p", name)), *arguments]

    def record(self, name: str) -> dict[str, Any]:
        """Return a file that --amp-record or --amp-report wrote."""
        data: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        return data

    def observations(self, name: str) -> list[dict[str, Any]]:
        """Return the observations in such a file."""
        return list(table.items(self.record(name)["observations"]))

    def observed(self, name: str) -> dict[str, Any]:
        """Return the values in such a file, by key."""
        return {item["key"]: item["value"] for item in self.observations(name)}


def _has_workers(arguments: tuple[str, ...]) -> bool:
    return "-n" in arguments and arguments[arguments.index("-n") + 1] != "0"


def refused(result: pytest.RunResult) -> str:
    """Return the single line of a usage error; assert that there is no other output, and that pytest ended with 4."""
    lines = [line for line in result.errlines if line.strip()]
    assert result.ret == pytest.ExitCode.USAGE_ERROR, result.outlines
    assert len(lines) == 1, lines
    assert lines[0].startswith("ERROR: ")
    return lines[0].removeprefix("ERROR: ")


def ids(result: pytest.RunResult) -> list[str]:
    """Return the ids that ``--collect-only -q`` listed: the part in brackets if there is one, else the name."""
    lines = [line for line in result.outlines if re.match(r"\S+\.py::\S+", line)]
    return [line[line.index("[") + 1 : -1] if "[" in line else line.rpartition("::")[2] for line in lines]


def summary(result: pytest.RunResult) -> list[str]:
    """Return the lines of the block "amp" at the end."""
    lines = result.outlines
    start = next((number for number, line in enumerate(lines) if re.fullmatch("=+ amp =+", line)), None)
    if start is None:
        return []
    end = next(n for n in range(start + 1, len(lines)) if re.match("=+ .* =+$|[0-9]+ [a-z]+|no tests", lines[n]))
    return lines[start + 1 : end]


def red(result: pytest.RunResult) -> list[str]:
    """Return the reasons for which the run is red although its tests may be green."""
    return [line.removeprefix("RED").strip() for line in summary(result) if line.startswith("RED ")]
