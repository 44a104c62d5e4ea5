"""Yardstick of a card: kernels whose time depends on no release of torch, measured beside the work.

The kernels are PTX (yardstick.ptx), which the driver alone compiles. A card older than its target, such as V100, and
one of another vendor has no yardstick: its times are compared on the same card, and nowhere else.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from importlib import resources

import torch

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.devices.host import cpu_name
from pytest_amp.record.times import Conditions
from pytest_amp.speed.clocks import Clock
from pytest_amp.speed.driver import DriverError, Kernels
from pytest_amp.speed.environment import uuid_of
from pytest_amp.speed.replay import can_replay, replayed
from pytest_amp.speed.verdict import LOOKS, Interval, interval_of
from pytest_amp.text.quoted import first_line

#: Size of the products: rounds of eight products a warp, threads in a block, blocks on a multiprocessor. They take
#: about a millisecond on an H200.
ROUNDS, THREADS, BLOCKS = 16384, 256, 2
#: Bytes that are copied: more than the caches of any card.
COPIED = 1 << 27
#: Launches in a captured graph.
LAUNCHES = 256
#: Number of calls in one timing, which then takes about a millisecond, and of timings in a block.
REPEATS = {"tensor-cores": 1, "copy": 16, "launch": 4, "host-launch": 256}
TIMINGS = 5
#: Seconds of products before the measurement: an idle card needs some of them until its clocks have risen.
WARM_UP = 0.3

#: Conditions of this process by card: every check has them beside its times, and they are measured once.
_known: dict[str, tuple[Conditions, str]] = {}


def conditions_of(device: Device, clock: Clock, *, again: bool = False) -> tuple[Conditions, str]:
    """Return the conditions of this process's times on ``device``, and why they have no yardstick, else "".

    They are measured once in a process, and then only if ``again``.
    """
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda":
        return Conditions("", cpu_name()), ""
    card = uuid_of(device)
    if again or card not in _known:
        lacking, intervals = "", dict[str, Interval]()
        try:
            intervals = yardstick(device, clock)
        except RuntimeError as error:  # DriverError, and torch's for a capture that fails
            lacking = f"no yardstick: {error}; times are compared on the same card only"
        ends = {name: (interval.low, interval.median, interval.high) for name, interval in intervals.items()}
        _known[card] = Conditions(card, cpu_name(), ends), lacking
    return _known[card]


def yardstick(device: Device, clock: Clock) -> dict[str, Interval]:
    """Measure the seconds of each kernel on ``device``, with their intervals; 0.6 seconds on an H200.

    Raises DriverError if the device cannot run them.
    """
    if not can_replay(device) or torch.version.hip:
        raise DriverError(f"{device.name} is no card of NVIDIA")
    with torch.cuda.device(device.torch_device):
        calls = _calls(device)
        end = time.perf_counter() + WARM_UP
        while time.perf_counter() < end:
            clock.time(calls["tensor-cores"], repeats=8, timings=1)
        blocks: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(LOOKS[0]):
            for name, call in calls.items():
                seconds = min(clock.time(call, repeats=REPEATS[name], timings=TIMINGS))
                blocks[name].append(seconds / (LAUNCHES if name == "launch" else 1))
    return {name: interval_of(series) for name, series in blocks.items()}


@functools.cache
def _kernels(index: int) -> Kernels:  # noqa: ARG001  # the context is that of the current device
    """Return the kernels in the context of the device with this index."""
    return Kernels(resources.files(__package__).joinpath("yardstick.ptx").read_bytes())


def _calls(device: Device) -> dict[str, Callable[[], object]]:
    """Return a call for each yardstick: replays of captured kernels, and one launch by the host."""
    try:
        source = torch.zeros(COPIED, dtype=torch.uint8, device=device.torch_device)
        target = torch.empty_like(source)
    except RuntimeError as error:  # out of memory
        raise DriverError(f"no memory for the yardstick: {first_line(error)}") from None
    kernels = _kernels(torch.cuda.current_device())
    processors = torch.cuda.get_device_properties(device.torch_device).multi_processor_count
    to, count = ctypes.c_uint64(target.data_ptr()), ctypes.c_uint32(COPIED // 16)

    def launch(name: str, *arguments: object, grid: int = 1, block: int = 1) -> None:
        stream = int(torch.cuda.current_stream(device.torch_device).cuda_stream)
        kernels.launch(name, *arguments, stream=stream, grid=grid, block=block)

    def multiply() -> None:
        launch("tensor_cores", to, ctypes.c_uint32(ROUNDS), grid=BLOCKS * processors, block=THREADS)

    def copy() -> None:
        launch("copy", to, ctypes.c_uint64(source.data_ptr()), count, grid=16 * processors, block=THREADS)

    def launches() -> None:
        for _ in range(LAUNCHES):
            launch("launch")

    captured: dict[str, Callable[[], object]] = {
        "tensor-cores": replayed(multiply, device),
        "copy": replayed(copy, device),
        "launch": replayed(launches, device),
    }
    return {**captured, "host-launch": functools.partial(launch, "launch")}
