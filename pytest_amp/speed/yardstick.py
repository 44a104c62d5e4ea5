"""Yardstick of a card: reference kernels whose time does not depend on the release of torch.

They are timed in the process that times a step. Their times show whether the card runs at the speed of an earlier run,
and translate a time to another card. The kernels are PTX (yardstick.ptx), which only the driver compiles. A card older
than the PTX target, such as a V100, and a card of another vendor have no yardstick: their times are compared on the
same card only.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from importlib import resources

import torch

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.devices.cpu import cpu_name
from pytest_amp.record.times import Conditions
from pytest_amp.speed.clocks import Clock
from pytest_amp.speed.driver import DriverError, Kernels
from pytest_amp.speed.environment import uuid_of
from pytest_amp.speed.replay import can_replay, replayed
from pytest_amp.speed.verdict import LOOKS, Interval, interval_of
from pytest_amp.text.quoted import first_line

#: Size of the kernel ``tensor_cores``: rounds of eight matrix products per warp, threads per block, and blocks per
#: multiprocessor. It takes about a millisecond on an H200.
ROUNDS, THREADS, BLOCKS = 16384, 256, 2
#: Bytes that the kernel ``copy`` copies: more than the caches of any card can contain.
COPIED = 1 << 27
#: Launches of an empty kernel in the captured graph of ``launch``.
LAUNCHES = 256
#: Number of calls per timing, so that a timing takes about a millisecond.
REPEATS = {"tensor-cores": 1, "copy": 16, "launch": 4, "host-launch": 256}
#: Number of timings per block, of which the fastest counts.
TIMINGS = 5
#: Seconds of warm-up with ``tensor_cores``: the clocks of an idle card take a while to rise.
WARM_UP = 0.3

#: Cache by card: conditions, and why there is no yardstick. Every speed check records the conditions with its times.
_known: dict[str, tuple[Conditions, str]] = {}


def conditions_of(device: Device, clock: Clock, *, again: bool = False) -> tuple[Conditions, str]:
    """Return the conditions under which times are measured on ``device``, and why they lack a yardstick, else "".

    They are measured once per process, and again if ``again`` is true.
    """
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda":
        return Conditions("", cpu_name()), ""
    card = uuid_of(device)
    if again or card not in _known:
        reason, intervals = "", dict[str, Interval]()
        try:
            intervals = yardstick(device, clock)
        except RuntimeError as error:  # DriverError, or torch's error of a failed graph capture
            reason = f"no yardstick: {error}; times are compared on the same card only"
        ends = {name: (interval.low, interval.median, interval.high) for name, interval in intervals.items()}
        _known[card] = Conditions(card, cpu_name(), ends), reason
    return _known[card]


def yardstick(device: Device, clock: Clock) -> dict[str, Interval]:
    """Measure the seconds of each reference kernel on ``device``: median and confidence interval.

    This takes 0.6 seconds on an H200. Raises DriverError if the device cannot run the kernels.
    """
    if not can_replay(device) or torch.version.hip:
        raise DriverError(f"{device.name} is not an NVIDIA GPU")
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
def _kernels(index: int) -> Kernels:  # noqa: ARG001  # the key of the cache
    """Load the kernels in the context of the current device, which has this index; cached by index."""
    return Kernels(resources.files(__package__).joinpath("yardstick.ptx").read_bytes())


def _calls(device: Device) -> dict[str, Callable[[], object]]:
    """Return the function to time for each yardstick: replays of captured graphs, and a kernel launch by the host."""
    try:
        source = torch.zeros(COPIED, dtype=torch.uint8, device=device.torch_device)
        target = torch.empty_like(source)
    except RuntimeError as error:  # out of memory
        raise DriverError(f"no memory for the yardstick: {first_line(error)}") from None
    kernels = _kernels(torch.cuda.current_device())
    processors = torch.cuda.get_device_properties(device.torch_device).multi_processor_count
    destination, count = ctypes.c_uint64(target.data_ptr()), ctypes.c_uint32(COPIED // 16)

    def launch(name: str, *arguments: object, grid: int = 1, block: int = 1) -> None:
        stream = int(torch.cuda.current_stream(device.torch_device).cuda_stream)
        kernels.launch(name, *arguments, stream=stream, grid=grid, block=block)

    def multiply() -> None:
        launch("tensor_cores", destination, ctypes.c_uint32(ROUNDS), grid=BLOCKS * processors, block=THREADS)

    def copy() -> None:
        launch("copy", destination, ctypes.c_uint64(source.data_ptr()), count, grid=16 * processors, block=THREADS)

    def launches() -> None:
        for _ in range(LAUNCHES):
            launch("launch")

    captured: dict[str, Callable[[], object]] = {
        "tensor-cores": replayed(multiply, device),
        "copy": replayed(copy, device),
        "launch": replayed(launches, device),
    }
    return {**captured, "host-launch": functools.partial(launch, "launch")}
