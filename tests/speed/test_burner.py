"""Verdicts on speed are inconclusive while another process computes on the same GPU, which is a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.project import Project, summary

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that two processes can share")

#: Multiplies without end, in a process whose parent has ended, so that it is a child of no other; prints its number.
BURNER = """
import os, sys
if "orphan" in sys.argv and os.fork():
    os._exit(0)
import torch
matrix = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
print(os.getpid(), flush=True)
while True:
    for _ in range(20):
        matrix @ matrix
    torch.cuda.synchronize()
"""

#: Work that would pass, and work that would be red.
TESTS = """
import pytest, torch

def work():
    a, b = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
    return lambda: a @ b

@pytest.mark.parametrize("floor", [0.01, 1000.0])
@pytest.mark.parametrize("kind", ["device", "step"])
def test_product(amp, kind, floor):
    amp.check_speedup(work, floor=floor, versus="fp32", kind=kind, name=f"product, {floor}", seconds=1.0)
"""

#: A burner that the tests' own process starts, and therefore knows.
CHILD = f"""
import subprocess, sys
import pytest

@pytest.fixture(scope="session", autouse=True)
def burner():
    with subprocess.Popen([sys.executable, "-c", {BURNER!r}], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        yield
        process.kill()
"""


@pytest.fixture
def timed(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project that sees the GPU, and times work on it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    project.write(test_it=TESTS)
    return project


def run(project: Project) -> pytest.RunResult:
    return project.apart("--amp-device=cuda", "--amp-dtype=bf16", "--amp-speed=gate", "-rs")


@pytest.fixture
def stranger() -> Iterator[None]:
    """Start a burner that is not a child of the timing process."""
    command = [sys.executable, "-c", BURNER, "orphan"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        yield
        os.kill(pid, signal.SIGKILL)


def test_undisturbed_checks_are_judged_by_their_floors(timed: Project) -> None:
    run(timed).assert_outcomes(passed=2, failed=2)


@pytest.mark.usefixtures("stranger")
def test_foreign_process_makes_checks_inconclusive(timed: Project) -> None:
    result = run(timed)
    result.assert_outcomes(skipped=4)
    lines = [line for line in summary(result) if line.startswith("skipped")]
    assert len(lines) == 4
    assert all("inconclusive: product" in line and "1 other process on this GPU" in line for line in lines)
    assert "4 inconclusive" in summary(result)[0]


def test_computing_child_process_makes_checks_inconclusive(timed: Project) -> None:
    timed.write(conftest=CHILD)
    result = run(timed)
    result.assert_outcomes(skipped=4)
    assert "4 inconclusive" in summary(result)[0]
