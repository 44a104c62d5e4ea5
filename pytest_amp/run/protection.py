"""Protection of each amp test: a known state of torch before it, and a check of the device and of torch after it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

import pytest

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.devices.fake import FakeDevice
from pytest_amp.run import workers
from pytest_amp.run.identity import target_of
from pytest_amp.run.machine_faults import error_after, memory_errors, skip_lost, swallowed
from pytest_amp.run.session import Isolation
from pytest_amp.run.state_guard import StateGuard


def protect(item: pytest.Item, seed: int, isolation: Isolation) -> Callable[[], None]:
    """Seed torch with ``seed`` and pin it to one CPU thread; return the function to call after the test.

    With more threads the order of sums, and so the last bits of results, would depend on their number. If the device
    does not answer since an earlier test, the test is not run.
    """
    import torch

    from pytest_amp.devices.generators import seed_torch

    target = target_of(item)
    device = target.device if target is not None else None
    if device is not None:
        skip_lost(device, isolation)
    errors_before = 0 if device is None else memory_errors(device)
    guard = StateGuard(device.type if device is not None else None)
    scope = contextlib.ExitStack()
    if isinstance(device, FakeDevice):
        scope.enter_context(device.refusing())
    torch.set_num_threads(1)
    seed_torch(seed)

    def after() -> None:
        scope.close()
        torch.set_num_threads(threads)
        leaked = guard.restore()  # first, because it does not use the device: later tests need the restored state
        problems = [_device_problem(item, device, isolation, errors_before)]
        if leaked:
            what = "; ".join(f"{name}: {before} became {now}" for name, (before, now) in leaked.items())
            problems.append(f"AmpFailure: the test left torch's state changed (restored now): {what}")
        if any(problems):
            pytest.fail("\n".join(filter(None, problems)), pytrace=False)

    threads = guard.threads
    return after


def _device_problem(item: pytest.Item, device: Device | None, isolation: Isolation, errors_before: int) -> str | None:
    """Return the pending error of the device, or that it was full and the test went on."""
    if device is None or device.kind is not DeviceKind.ACCELERATOR:
        return None
    message = error_after(item, device)
    if message is not None:
        isolation.poisoned[device.name] = (item.nodeid, message)
        return f"{device.name} no longer answers after this test: {message}"
    return swallowed(item, device, errors_before)


def leave_poisoned_worker(config: pytest.Config, isolation: Isolation) -> None:
    """End a worker whose device no longer answers: pytest-xdist names the test and starts another worker.

    If a new process cannot use the device, either, the worker stays, and its remaining tests are not run: a worker that
    took its place could not collect them, and pytest-xdist would wait for it.
    """
    if not isolation.poisoned or isolation.stays or not workers.is_worker(config):
        return
    from pytest_amp.devices.probe import probe_in_child

    answers = probe_in_child([*isolation.poisoned], workers.device_modules(config))
    if not all(answer.works for answer in answers.values()):
        isolation.stays = True
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
