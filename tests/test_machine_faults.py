"""Faults of the machine: each is reported in one line, the run is red, observations are written, other tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_amp.child_process import ExaminationFailed, Isolated
from pytest_amp.devices import find_device
from pytest_amp.devices import probe as probing
from pytest_amp.devices.faults import FaultKind, fault_in, fault_of_text
from pytest_amp.failure import AmpFailure
from pytest_amp.fingerprint.observation import patterns_of
from pytest_amp.rules.outcome import record
from tests.project import SIMULATED, Project, red, refused

FULL = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 3.06 MiB is "
    "free. Process 4711 has 138.90 GiB memory in use. Of the allocated memory 10.00 MiB is allocated by PyTorch, and "
    "2.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
FULL_IN_SHORT = FULL.partition(" Of the allocated")[0]
DEBUGGING = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
BUSY = f"CUDA error: CUDA-capable device(s) is/are busy or unavailable{DEBUGGING}"
#: The class of CUDA's errors, which is new in torch 2.8.
ERROR = 'getattr(torch, "AcceleratorError", RuntimeError)'
OFF_THE_BUS = f"CUDA error: unspecified launch failure{DEBUGGING}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (FULL, FaultKind.MEMORY),
        ("HIP out of memory. Tried to allocate 2.00 GiB.", FaultKind.MEMORY),
        ("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB)", FaultKind.MEMORY),
        (f"CUDA error: out of memory{DEBUGGING}", FaultKind.MEMORY),
        ("CUDA driver error: out of memory", FaultKind.MEMORY),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", FaultKind.MEMORY),
        ("[enforce fail at alloc_cpu.cpp:128] . DefaultCPUAllocator: can't allocate memory: ...", FaultKind.MEMORY),
        (BUSY, FaultKind.UNAVAILABLE),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", FaultKind.UNAVAILABLE),
        ("CUDA error: system not yet initialized", FaultKind.UNAVAILABLE),
        ("CUDA error: no CUDA-capable device is detected", FaultKind.LOST),
        ("No CUDA GPUs are available", FaultKind.LOST),
        ("GPU is lost", FaultKind.LOST),
        ("CUDA error: an illegal memory access was encountered", None),
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`", None),
        ("the model remembers more than fits: out of memory", None),
    ],
)
def test_fault_is_recognized_by_the_message_of_torch(text: str, kind: FaultKind | None) -> None:
    fault = fault_of_text(text)
    assert (fault.kind if fault else None) is kind
    assert fault is None or "\n" not in fault.text


def test_message_of_a_fault_is_shortened() -> None:
    fault = fault_in(torch.OutOfMemoryError(FULL))
    assert fault is not None
    assert (fault.about("cuda"), fault.text) == ("cuda is out of memory", FULL_IN_SHORT)
    host = fault_in(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."))
    assert host is not None
    assert host.about("cuda") == "the host is out of memory"
    assert fault_in(MemoryError()) is not None


def test_fault_is_found_in_the_cause_of_a_failure() -> None:
    """Find the fault behind another message: a step could not be captured since the device is full."""

    def chained(*, suppress: bool) -> BaseException:
        try:
            try:
                raise torch.OutOfMemoryError(FULL)
            except RuntimeError as error:
                raise AmpFailure("it cannot be captured in a CUDA graph") from (None if suppress else error)
        except AmpFailure as failure:
            return failure

    assert fault_in(chained(suppress=False)) is not None
    assert fault_in(chained(suppress=True)) is None
    assert fault_in(AmpFailure("another bit")) is None


#: An accelerator that is full or lost as files in the project's folder say, which new processes read, too.
FAULTY = (
    SIMULATED.replace("import torch\n", "import os\nimport torch\n", 1)
    + f"""
    def synchronize(self):
        if Simulated.broken or os.path.exists({{folder!r}} + "/off-the-bus"):
            raise {ERROR}({OFF_THE_BUS!r})

    broken = False

    def autocast(self, dtype, *, enabled=True, cache_enabled=True):
        if os.path.exists({{folder!r}} + "/full"):
            raise torch.OutOfMemoryError({FULL!r})
        if os.path.exists({{folder!r}} + "/busy"):
            raise {ERROR}({BUSY!r})
        return torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache_enabled)
"""
)
TESTS = """
import pathlib

import pytest
import torch
from conftest import Simulated


def test_a(amp):
    amp.observe("a", 1, kind="count")


@pytest.mark.amp(devices=["simulated"])
def test_b(amp):
    amp.observe("b", 1, kind="count")
    FAULT


@pytest.mark.parametrize("n", [1, 2, 3])
def test_c(amp, n):
    amp.observe(f"c{n}", 1, kind="count")
"""
#: Faults after which the device works again, stays full, or is lost.
MEETS_FULL = f"raise torch.OutOfMemoryError({FULL!r})"
FILLS = f"pathlib.Path(__file__).with_name('full').touch(); {MEETS_FULL}"
FALLS = f"pathlib.Path(__file__).with_name('off-the-bus').touch(); raise {ERROR}({OFF_THE_BUS.splitlines()[0]!r})"


@pytest.fixture
def run(project: Project) -> Callable[..., pytest.RunResult]:
    """Return a function that runs the tests with a fault on a simulated accelerator and on the CPU."""

    def call(fault: str, *arguments: str, tests: str = TESTS) -> pytest.RunResult:
        project.write(conftest=FAULTY.format(folder=str(project.path)), test_it=tests.replace("FAULT", fault))
        options = ("--amp-device=simulated,cpu", "--amp-dtype=bf16", "--amp-record=new.json", "-p", "no:randomly")
        in_workers = "-n" in arguments and "0" not in arguments
        return (project.apart if in_workers else project.here)(*options, *arguments)

    return call


def expect_saved(project: Project, *names: str) -> None:
    """Expect an incomplete record with these facts of the accelerator and all facts of the CPU."""
    assert project.record("new.json")["complete"] is False
    expected = {f"project/simulated/bf16/{name}" for name in names}
    expected |= {f"project/cpu/bf16/{name}" for name in ("a", "c1", "c2", "c3")}
    assert set(project.observed("new.json")) == expected


@pytest.mark.parametrize("workers", ["0", "1"])
def test_full_device_is_reported_in_one_line_and_other_tests_run(
    project: Project, run: Callable[..., pytest.RunResult], workers: str
) -> None:
    result = run(MEETS_FULL, "-n", workers)
    result.assert_outcomes(passed=8, failed=1)
    culprit = "test_it.py::test_b[simulated-bf16]"
    assert (result.ret, red(result)) == (
        1,
        [f"simulated is out of memory in 1 test, first in {culprit}: {FULL_IN_SHORT}"],
    )
    line = f"simulated is out of memory, which says nothing about torch: {FULL_IN_SHORT} (test_it.py:15)"
    assert line in result.outlines
    expect_saved(project, "a", "b", "c1", "c2", "c3")


def test_full_device_that_stays_full_ends_its_tests(project: Project, run: Callable[..., pytest.RunResult]) -> None:
    result = run(FILLS)
    result.assert_outcomes(passed=5, failed=1, errors=1, skipped=3)
    culprit = "test_it.py::test_b[simulated-bf16]"
    (line,) = red(result)
    assert line.startswith(f"simulated no longer answers after {culprit}: OutOfMemoryError: CUDA out of memory. ")
    assert line.endswith("; 3 tests not run")
    assert result.ret == 1
    expect_saved(project, "a", "b")


@pytest.mark.parametrize("workers", ["0", "1"])
def test_device_off_the_bus_ends_its_tests(
    project: Project, run: Callable[..., pytest.RunResult], workers: str
) -> None:
    """Replace no worker, since a new process cannot use the device, either; tests of the CPU run."""
    result = run(FALLS, "-n", workers)
    assert result.ret == 1
    (line,) = red(result)
    assert "simulated no longer answers after " in line
    assert ": CUDA error: unspecified launch failure" in line
    assert "node down" not in result.stdout.str()
    record = project.record("new.json")
    assert record["complete"] is False
    assert {f"project/cpu/bf16/{name}" for name in ("a", "c1", "c2", "c3")} <= set(project.observed("new.json"))
    assert line.endswith("; 3 tests not run")
    result.assert_outcomes(passed=5, failed=1, errors=1, skipped=3)


def test_device_lost_before_a_family_is_reported_in_one_line(
    run: Callable[..., pytest.RunResult], project: Project
) -> None:
    project.file("checks/__init__.py", "")
    project.file("checks/own/__init__.py", 'from pytest_amp.families import Family\nFAMILY = Family("own")\n')
    project.file("checks/own/test_own.py", "def test_it(amp):\n    pass\n")
    result = run(FALLS, "test_it.py", "checks")
    assert len(red(result)) == 1
    assert red(result)[0].endswith("; 4 tests not run")


def test_expected_failure_does_not_hide_a_full_device(run: Callable[..., pytest.RunResult]) -> None:
    tests = TESTS.replace("def test_b(", "@pytest.mark.xfail(strict=True)\ndef test_b(")
    result = run(MEETS_FULL, tests=tests)
    result.assert_outcomes(passed=8, failed=1)
    assert result.ret == 1


def test_skip_with_the_message_of_a_fault_is_no_fault(run: Callable[..., pytest.RunResult]) -> None:
    text = f"pytest.skip({FULL!r})"
    run(text).assert_outcomes(passed=8, skipped=1)


@pytest.mark.parametrize(("flag", "text", "workers"), [("busy", BUSY, "0"), ("busy", BUSY, "2"), ("full", FULL, "0")])
def test_named_device_with_a_fault_is_refused(
    project: Project, run: Callable[..., pytest.RunResult], flag: str, text: str, workers: str
) -> None:
    project.file(flag, "")
    line = refused(run("pass", "-n", workers))
    assert "'simulated' does not compute here" in line
    assert text[:50] in line


@pytest.mark.parametrize("name", ["auto", "all"])
def test_accelerator_with_a_fault_is_not_replaced_by_the_cpu(project: Project, name: str) -> None:
    """Refuse the run, since a gate that falls back to the CPU would be green."""
    conftest = FAULTY.format(folder=str(project.path))
    conftest += "\n\nfrom pytest_amp.run import resolution\nresolution.current_accelerator = lambda: 'simulated'\n"
    project.write(conftest=conftest, test_it="def test_it(amp):\n    pass\n")
    project.file("busy", "")
    line = refused(project.apart(f"--amp-device={name}", "--amp-dtype=bf16"))
    assert line.startswith(f"the device {name!r} would be the CPU, since simulated has a fault (")
    assert BUSY.splitlines()[0] in line
    assert line.endswith("; expected an accelerator that computes, or --amp-device=cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BUSY, True),
        (FULL, True),
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered", True),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", True),
        ("AcceleratorError: CUDA error: no kernel image is available for execution on the device", False),
        ("RuntimeError: No CUDA GPUs are available", False),
        ("RuntimeError: Found no NVIDIA driver on your system.", False),
        ("a matmul under autocast returned wrong values", False),
    ],
)
def test_error_of_the_probe_is_a_fault_or_a_missing_capability(text: str, expected: bool) -> None:  # noqa: FBT001  # a parameter
    assert probing.is_fault(text) is expected


def test_error_of_the_driver_differs_from_a_missing_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 46: all CUDA-capable devices are busy")

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "init", fail)
    assert probing.cuda_error() is None
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert str(probing.cuda_error()).startswith("RuntimeError: Unexpected error from cudaGetDeviceCount().")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert probing.cuda_error() is None


SWALLOWS = """
import pytest_amp.run.machine_faults as machine_faults
import pytest_amp.run.protection as protection

machine_faults.memory_errors = protection.memory_errors = lambda device: Simulated.refused


def pytest_runtest_call(item):
    if "test_b" in item.name:
        Simulated.refused += 2
"""


@pytest.mark.parametrize(("family", "workers"), [("project", "0"), ("project", "1"), ("own", "0")])
def test_memory_error_that_a_suite_catches_is_red(project: Project, family: str, workers: str) -> None:
    """Fail, since a check that falls back to less would be green; in a project's own test it is a note."""
    conftest = FAULTY.format(folder=str(project.path)) + "    refused = 0\n" + SWALLOWS
    project.file("conftest.py", conftest)
    project.file("checks/__init__.py", "")
    project.file("checks/own/__init__.py", 'from pytest_amp.families import Family\nFAMILY = Family("own")\n')
    folder = "checks/own" if family == "own" else "."
    project.file(f"{folder}/test_it.py", "def test_a(amp):\n    pass\n\n\ndef test_b(amp):\n    pass\n")
    result = project.apart("--amp-device=simulated", "--amp-dtype=bf16", f"{folder}/test_it.py", "-n", workers)
    line = f"simulated was out of memory 2 times in {folder}/test_it.py::test_b[simulated-bf16], which caught the error"
    if family == "project":
        result.assert_outcomes(passed=2)
        assert any(
            text.startswith("note ") and "simulated was out of memory 2 times" in text for text in result.outlines
        )
    else:
        result.assert_outcomes(passed=2, errors=1)
        assert f"{line}: its checks may have compared less" in result.outlines
    assert result.ret == (0 if family == "project" else 1)


def busy_examiner(_request: Any, _device: Any) -> None:
    """Raise as a child process does on a GPU in exclusive mode that its parent uses."""
    raise getattr(torch, "AcceleratorError", RuntimeError)(BUSY)


def test_child_that_cannot_use_the_device_is_not_restarted() -> None:
    """Start one process, since each test would otherwise start another and wait for it."""
    child = Isolated(f"{__name__}:{busy_examiner.__name__}")
    for _ in range(2):
        with pytest.raises(ExaminationFailed, match=r"^cpu is busy or unavailable for the process of mm: ") as failed:
            child.ask({"device": "cpu"}, "mm")
    assert child.starts == 1
    assert fault_in(failed.value) is not None


def full() -> Any:
    raise torch.OutOfMemoryError(FULL)


class FullCall:
    """Call of an operator's sample on a full device."""

    def prepare(self) -> Callable[..., Any]:
        return lambda _dtype, _enabled: full


def test_full_device_is_not_recorded_as_an_outcome() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        record(full)
    with pytest.raises(torch.OutOfMemoryError):
        patterns_of([FullCall()], find_device("cpu"), torch.bfloat16)
