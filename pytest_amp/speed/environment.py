"""Whether a GPU is this process's own, cool and at its clocks, while something is timed on it."""

from __future__ import annotations

import itertools
import os
import statistics
from pathlib import Path
from typing import Any

import torch

from pytest_amp.devices import Device, DeviceKind, nvml
from pytest_amp.float32 import float32_precision

#: Kernels that take some 20 microseconds each run back to back for a tenth of a second. Between two processes the
#: driver switches: then the queue stands still for longer than SLICE seconds, now and again, and of the whole time more
#: than the share INTERRUPTED is lost. On an H200 (torch 2.11) that was 0 in 30 looks of 30 alone, and 0.54 in 8 of 8
#: beside a process that multiplies; in a third of the time four looks of five see nothing.
KERNELS, ELEMENTS = 5000, 1 << 23
SLICE = 0.2e-3
INTERRUPTED = 0.05
#: So many float32 products of this side keep the device busy (21 ms on an H100) while the host begins to fill the
#: queue, and take little memory: the device may be full of somebody's model.
HEAD_START, SIDE = 8, 4096


def doubts_of(device: Device) -> tuple[str, ...]:
    """Why nothing timed on ``device`` now can be trusted; empty where nothing is known against it.

    A process of somebody else is a doubt. This one's own children are none as long as they stand still: suites keep
    some for what may crash. That they do, and that nobody computes whom the driver does not show, as one in another
    container, a queue of kernels tells.
    """
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda" or torch.version.hip:
        return ()
    uuid = uuid_of(device)
    found = [f"the driver reports {reason}" for reason in nvml.throttled(uuid)]
    there = nvml.processes(uuid)
    known = there is not None and os.getpid() in there
    strangers = [pid for pid in there or () if pid != os.getpid() and not _is_descendant(pid)] if known else []
    if strangers:
        found.append(f"{len(strangers)} other process{'es' if len(strangers) > 1 else ''} on this GPU")
    elif (share := lost(device)) > INTERRUPTED:
        found.append(f"{share:.0%} of the time is lost between short kernels: another process computes on this GPU")
    return tuple(found)


def lost(device: Device) -> float:
    """What goes to somebody else, seen twice: a host that was held up once has not filled the queue."""
    share = interrupted(device)
    return min(share, interrupted(device)) if share > INTERRUPTED else share


def _is_descendant(pid: int) -> bool:
    """Whether a process is a child of this one, or a child's."""
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
    """The GPU's own, by which the driver knows it whatever CUDA_VISIBLE_DEVICES says."""
    return str(torch.cuda.get_device_properties(device.torch_device).uuid)


def interrupted(device: Device) -> float:
    """The share of the time in which a full queue of short kernels stands still: it goes to somebody else."""
    stream = torch.cuda.current_stream(device.torch_device)
    matrix = torch.ones(SIDE, SIDE, device=device.torch_device)
    product = torch.empty_like(matrix)
    small = torch.ones(ELEMENTS, device=device.torch_device)
    made: Any = torch.cuda.Event  # without types in some releases
    events = [made(enable_timing=True) for _ in range(KERNELS + 1)]
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
