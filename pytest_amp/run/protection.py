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
from pytest_amp.run.session import Isolation, Messages
from pytest_amp.run.state_guard import StateGuard


def protect(item: pytest.Item, seed: int, isolation: Isolation, messages: Messages) -> Callable[[], None]:
    """Seed torch with ``seed`` and pin it to one CPU thread; return the function to call after the test.

    With more threads the order of sums, and so the last bits of results, would depend on their number. If the device
    does not answer since an earlier test, the test fails at once.
    """
    import torch

    from pytest_amp.devices.generators import seed_torch

    target = target_of(item)
    device = target.device if target is not None else None
    if device is not None and device.name in isolation.poisoned:
        culprit, message = isolation.poisoned[device.name]
        pytest.fail(f"{device.name} no longer answers after {culprit}: {message}", pytrace=False)
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
        problems = [_device_problem(item, device, isolation, messages)]
        if leaked:
            what = "; ".join(f"{name}: {before} became {now}" for name, (before, now) in leaked.items())
            problems.append(f"AmpFailure: the test left torch's state changed (restored now): {what}")
        if any(problems):
            pytest.fail("\n".join(filter(None, problems)), pytrace=False)

    threads = guard.threads
    return after


def _device_problem(item: pytest.Item, device: Device | None, isolation: Isolation, messages: Messages) -> str | None:
    """Return the pending error of the device: kernels fail asynchronously, and the message must name their test."""
    if device is None or device.kind is not DeviceKind.ACCELERATOR:
        return None
    try:
        device.synchronize()
    except Exception as error:  # noqa: BLE001  # any error of the back end: the device does not answer
        message = (str(error).strip().splitlines() or [type(error).__name__])[0]
        isolation.poisoned[device.name] = (item.nodeid, message)
        messages.problem(f"{device.name} no longer answers after {item.nodeid}: {message}")
        return f"{device.name} no longer answers after this test: {message}"
    return None


def leave_poisoned_worker(config: pytest.Config, isolation: Isolation) -> None:
    """End a worker whose device no longer answers: pytest-xdist names the test and starts another worker."""
    if isolation.poisoned and workers.is_worker(config):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
