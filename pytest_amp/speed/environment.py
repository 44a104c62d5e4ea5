"""Checks that a GPU is used by this process only and is not throttled during a measurement."""

from __future__ import annotations

import itertools
import os
import statistics
from pathlib import Path
from typing import Any

import torch

from pytest_amp.devices import Device, DeviceKind, nvml
from pytest_amp.precision.float32 import float32_precision

#: Number and size of kernels that take about 20 microseconds each, a tenth of a second together. If another process
#: uses the GPU, the driver switches between the two: the queue stops for longer than SLICE seconds at times, and more
#: than the share INTERRUPTED of the time is lost. On an H200 (torch 2.11) that share was 0 in 30 of 30 measurements
#: without another process, and 0.54 in 8 of 8 next to a process that computes matrix products. With a third of this
#: duration four of five measurements do not detect that process.
KERNELS, ELEMENTS = 5000, 1 << 23
SLICE = 0.2e-3
INTERRUPTED = 0.05
#: Number and side of float32 matrix products that keep the device busy (21 ms on an H100) while the host begins to fill
#: the queue. They need little memory: a user's model may fill the device.
HEAD_START, SIDE = 8, 4096


def doubts_of(device: Device) -> tuple[str, ...]:
    """Return the reasons not to trust a time measured on ``device`` now; empty if there are none.

    Another process on the GPU is a reason. An idle child of this process is not: the suites start some for calls that
    may crash. A queue of kernels (``interrupted``) detects children that are not idle, and processes that the driver
    does not list, such as those in another container.
    """
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda" or torch.version.hip:
        return ()
    uuid = uuid_of(device)
    doubts = [f"the driver reports {reason}" for reason in nvml.throttled(uuid)]
    there = nvml.processes(uuid)
    known = there is not None and os.getpid() in there
    strangers = [pid for pid in there or () if pid != os.getpid() and not _is_descendant(pid)] if known else []
    if strangers:
        doubts.append(f"{len(strangers)} other process{'es' if len(strangers) > 1 else ''} on this GPU")
    elif (share := lost(device)) > INTERRUPTED:
        doubts.append(f"{share:.0%} of the time is lost between short kernels: another process computes on this GPU")
    return tuple(doubts)


def unread(device: Device) -> str | None:
    """Return why the driver does not report heat and processes of ``device``; None if it does, or has no NVML."""
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda" or torch.version.hip:
        return None
    return nvml.lacking()


def lost(device: Device) -> float:
    """Return the share of the time lost to other processes, confirmed by a second measurement.

    The second one is needed because the host may have been interrupted while it filled the queue.
    """
    share = interrupted(device)
    return min(share, interrupted(device)) if share > INTERRUPTED else share


def _is_descendant(pid: int) -> bool:
    """Return whether a process is a descendant of this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        line = next((line for line in status.splitlines() if line.startswith("PPid:")), "PPid: 0")
        pid = int(line.split()[1])
    return False


def uuid_of(device: Device) -> str:
    """Return the GPU's UUID, which identifies it to the driver regardless of CUDA_VISIBLE_DEVICES."""
    return str(torch.cuda.get_device_properties(device.torch_device).uuid)


def interrupted(device: Device) -> float:
    """Measure the share of the time in which a full queue of short kernels is idle: it is lost to other processes."""
    stream = torch.cuda.current_stream(device.torch_device)
    matrix = torch.ones(SIDE, SIDE, device=device.torch_device)
    product = torch.empty_like(matrix)
    small = torch.ones(ELEMENTS, device=device.torch_device)
    event_class: Any = torch.cuda.Event  # untyped in some releases
    events = [event_class(enable_timing=True) for _ in range(KERNELS + 1)]
    small.mul_(1.0)
    device.synchronize()
    with torch.no_grad(), float32_precision("ieee"):
        for _ in range(HEAD_START):
            torch.mm(matrix, matrix, out=product)
    for event in events:
        small.mul_(1.0)
        event.record(stream)
    device.synchronize()
    gaps: list[float] = [first.elapsed_time(second) / 1000 for first, second in itertools.pairwise(events)]
    usual = statistics.median(gaps)
    return sum(gap for gap in gaps if gap > usual + SLICE) / max(sum(gaps), 1e-9)
