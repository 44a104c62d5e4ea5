"""Faults of the machine during a run: one line for each, no expected failure hides one, and none counts as a result."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.devices.faults import MachineFault, fault_in
from pytest_amp.run.identity import INFO, NOTES, target_of
from pytest_amp.run.session import Isolation
from pytest_amp.run.tally import NOT_RUN, Tally
from pytest_amp.text.amounts import counted
from pytest_amp.text.quoted import first_line

#: Fault of the machine that a test met, in its stash.
MET = pytest.StashKey[MachineFault]()
#: Exceptions that end a test without an error.
_NO_ERRORS = (pytest.skip.Exception, pytest.exit.Exception, KeyboardInterrupt)
#: Phases of a test; a report of pytest-xdist on a worker that died has none.
_PHASES = ("setup", "call", "teardown")


def tell_fault(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, isolation: Isolation) -> None:
    """Describe a fault of the machine in the report of the test that met it, or after which a device was lost.

    Such a test fails even if a failure is expected, since the fault says nothing about torch. The frames of the error
    are cleared: their tensors would keep a full device full for the tests that follow.
    """
    target = target_of(item)
    if INFO not in item.stash or target is None:
        return
    device = target.device.name
    if report.when == "teardown" and isolation.poisoned.get(device, ("", ""))[0] == item.nodeid:
        report.amp["lost"] = [device, isolation.poisoned[device][1]]
    error = call.excinfo.value if call.excinfo is not None else None
    fault = fault_in(error) if error is not None and not isinstance(error, _NO_ERRORS) else None
    if fault is None or error is None:
        return
    item.stash[MET] = fault
    about = fault.about(device)
    report.outcome = "failed"
    report.longrepr = f"{about}, which says nothing about torch: {fault.text}{_place(error)}"
    vars(report).pop("wasxfail", None)
    report.amp["fault"] = [about, fault.text]
    if not item.config.getoption("usepdb", default=False):
        traceback.clear_frames(error.__traceback__)


def _place(error: BaseException) -> str:
    """Return the line of the project that met the fault."""
    from pytest_amp.cases.raised import own_frames

    frames = own_frames(error)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def skip_lost(device: Device, isolation: Isolation) -> None:
    """Skip a test of a device that no longer answers: each further test would fail for the same reason."""
    if device.name in isolation.poisoned:
        pytest.skip(_reason(device.name))


def _reason(device: str) -> str:
    return f"{NOT_RUN}{device} no longer answers"


def memory_errors(device: Device) -> int:
    """Return the number of allocations that CUDA's allocator has refused in this process; 0 for other devices."""
    import torch

    is_cuda = device.kind is DeviceKind.ACCELERATOR and device.type == "cuda"
    if not is_cuda or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
        return 0
    return int(torch.cuda.memory_stats(device.torch_device).get("num_ooms", 0))


def error_after(item: pytest.Item, device: Device) -> str | None:
    """Return why ``device`` does not answer after a test, in one line; None if it does.

    Kernels fail asynchronously, so that the message must name their test. After a test that met a full device, the
    memory that this process can release is released, and a small product must fit.
    """
    from pytest_amp.devices import nvml

    try:
        device.synchronize()
    except Exception as error:  # noqa: BLE001  # any error of the back end: the device does not answer
        message = first_line(error)
        lost = nvml.lost() if device.type == "cuda" else ()
        return f"{message} (the driver reports: {'; '.join(lost)})" if lost else message
    fault = item.stash.get(MET, None)
    if fault is None or fault.of_host:
        return None
    from pytest_amp.devices.probe import probe

    _release_memory()
    answer = probe(device)
    return None if answer.works else answer.reason


def _release_memory() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
        torch.cuda.empty_cache()


def swallowed(item: pytest.Item, device: Device, before: int) -> str | None:
    """Return that the device was full during a test that caught the error, in one line; None if it was not.

    A check that goes on without what did not fit compares less. ``before`` is ``memory_errors`` before the test. cuDNN
    goes on with a smaller workspace, so that in a project's own test this is a note.
    """
    count = 0 if MET in item.stash else memory_errors(device) - before
    if count <= 0:
        return None
    times = "once" if count == 1 else f"{count} times"
    line = f"{device.name} was out of memory {times} in {item.nodeid}, which caught the error"
    if item.stash[INFO].family == "project":
        item.stash.setdefault(NOTES, []).append(line)
        return None
    return f"{line}: its checks may have compared less"


def note_report(report: pytest.TestReport, data: Mapping[str, object], isolation: Isolation) -> None:
    """Note the faults of a report in the process that counts, and the worker that ends after one."""
    for key, faults in (("fault", isolation.faults), ("lost", isolation.lost)):
        if key in data:
            about, text = map(str, data[key])  # type: ignore[call-overload]  # two texts, from tell_fault
            _, tests = faults.setdefault(about, (text, []))
            if report.nodeid not in tests:
                tests.append(report.nodeid)
    if "lost" in data:
        isolation.left.add(getattr(report, "worker_id", ""))
    if report.when not in _PHASES and any(report.nodeid in tests for _, tests in isolation.lost.values()):
        report.longrepr = "its worker ended, since the device no longer answers there; another worker takes its place"


def problems(isolation: Isolation, tally: Tally) -> list[str]:
    """Return a line for each fault of the run, however many tests met it."""
    lines = []
    culprits: set[str] = set()
    for device, (text, tests) in isolation.lost.items():
        culprits.update(tests)
        not_run = sum(reasons[_reason(device)] for reasons in tally.reasons.values())
        rest = f"; {counted(not_run, 'test')} not run" if not_run else ""
        lines.append(f"{device} no longer answers after {', '.join(tests)}: {text}{rest}")
    for about, (text, tests) in isolation.faults.items():
        remaining = [test for test in tests if test not in culprits]
        if remaining:
            lines.append(f"{about} in {counted(len(remaining), 'test')}, first in {remaining[0]}: {text}")
    return lines
