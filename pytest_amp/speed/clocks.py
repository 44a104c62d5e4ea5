"""Clocks that time work instead of its launch: device events on an accelerator, the host's clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.precision.float32 import float32_precision

#: Sides of the square matmuls that check an accelerator's clock, each with eight times the work of the previous one.
SIDES = (256, 512, 1024, 2048, 4096)
#: The factor by which one of them must take longer than the first.
GROWTH = 4


class ClockError(RuntimeError):
    """Error for a device without a clock, or with a clock that does not time the device's work."""


class Clock(Protocol):
    """Protocol of a clock for calls whose work may continue after they return."""

    @property
    def name(self) -> str:
        """The clock's name in reports."""

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Return ``timings`` times in seconds per call, each measured over ``repeats`` consecutive calls.

        It returns after the work has completed.
        """


class Event(Protocol):
    """Protocol of an event in a device's queue, such as ``torch.cuda.Event`` and ``torch.Event``."""

    def elapsed_time(self, end: Any, /) -> float:  # torch's own types differ by release
        """Return the milliseconds of the device's time from this event to ``end``."""


class HostClock:
    """``time.perf_counter``, for calls that return when their work has completed, as on a CPU."""

    name = "perf_counter"

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Return seconds of the host's time per call."""
        seconds = []
        for _ in range(timings):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            seconds.append((time.perf_counter() - start) / repeats)
        return seconds


class WaitingClock:
    """The host's time until the device has completed the calls, for an accelerator without timing events."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        """Use ``synchronize`` to wait for the device."""
        self.name, self._synchronize = "perf_counter and synchronize", synchronize

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Return seconds of the host's time per call, including the wait."""
        self._synchronize()
        seconds = []
        for _ in range(timings):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            self._synchronize()
            seconds.append((time.perf_counter() - start) / repeats)
        return seconds


class EventClock:
    """Two events around the calls, in the queue of the device's current stream.

    The clock synchronizes once, after all timings: between them the host may run ahead of the device, as without a
    clock. Overhead of the host is measured as soon as the device waits for it.
    """

    def __init__(self, name: str, mark: Callable[[], Event], synchronize: Callable[[], None]) -> None:
        """Use ``mark`` to record a new event, and ``synchronize`` to wait for the device."""
        self.name, self._mark, self._synchronize = name, mark, synchronize

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Return seconds of the device's time per call."""
        marks = []
        for _ in range(timings):
            start = self._mark()
            for _ in range(repeats):
                call()
            marks.append((start, self._mark()))
        self._synchronize()
        return [start.elapsed_time(end) / 1000 / repeats for start, end in marks]


def clock_of(device: Device) -> Clock:
    """Return the clock for ``device``. Raises ClockError for a fake device, which computes nothing."""
    if device.kind is DeviceKind.FAKE:
        raise ClockError(f"{device.name} computes nothing that could be timed")
    if device.kind is DeviceKind.CPU:
        return HostClock()
    mark = _cuda_mark if device.type == "cuda" else _accelerator_mark
    try:
        # An event needs a device with an index, which a tensor's device has and a device's name need not have.
        indexed = torch.empty(0, device=device.torch_device).device
        clock = EventClock(f"{device.type} events", lambda: mark(indexed), device.synchronize)
        clock.time(lambda: None, repeats=1, timings=1)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        # Back ends raise different errors for events that do not time.
        return WaitingClock(device.synchronize)
    return clock


def _cuda_mark(device: torch.device) -> Event:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
    event.record(torch.cuda.current_stream(device))
    return event  # type: ignore[no-any-return]


def _accelerator_mark(device: torch.device) -> Event:
    event: Any = torch.Event(device, enable_timing=True)
    event.record()
    return event  # type: ignore[no-any-return]


def check_clock(clock: Clock, work: Callable[[int], Callable[[], object]]) -> None:
    """Raise ClockError unless ``clock`` measures longer times for more work.

    ``work(side)`` launches the same number of kernels for each of SIDES, with increasing work: a clock that times
    launches measures no difference.
    """
    times: list[float] = []
    for side in SIDES:
        call = work(side)
        clock.time(call, repeats=1, timings=2)
        times.append(min(clock.time(call, repeats=1, timings=5)))
        if times[-1] > GROWTH * times[0]:
            return
    measured = ", ".join(f"{seconds * 1e6:.1f}" for seconds in times)
    raise ClockError(f"the clock ({clock.name}) times launches: it sees {measured} µs for ever more work")


def checked_clock(device: Device) -> Clock:
    """Return the clock for ``device``, checked by ``check_clock`` on an accelerator. Raises ClockError."""
    clock = clock_of(device)
    if device.kind is DeviceKind.CPU:
        return clock  # its calls return when their work has completed

    def square(side: int) -> Callable[[], object]:
        matrix = torch.ones(side, side, device=device.torch_device)
        return lambda: matrix @ matrix

    with torch.no_grad(), float32_precision("ieee"):
        check_clock(clock, square)
    return clock
