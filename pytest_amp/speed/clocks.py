"""Clocks that time work, not its launch: device events on an accelerator, the host's clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.float32 import float32_precision

#: Sides of the square matmuls on which an accelerator's clock is checked, each eight times the work of the one before.
SIDES = (256, 512, 1024, 2048, 4096)
#: How much longer one of them must take than the first.
GROWTH = 4


class ClockError(RuntimeError):
    """There is no clock for a device, or it does not time the device's work."""


class Clock(Protocol):
    """Times calls whose work may go on after they return."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Seconds per call, ``timings`` times over, each of ``repeats`` calls back to back.

        Returns once the work is done.
        """


class Event(Protocol):
    """A mark in a device's queue, as ``torch.cuda.Event`` and ``torch.Event`` are."""

    def elapsed_time(self, end: Any, /) -> float:  # torch's own types differ by release
        """Milliseconds of the device's time from this mark to ``end``."""


class HostClock:
    """``time.perf_counter``, for calls that return when their work is done: on a CPU."""

    name = "perf_counter"

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Seconds per call of the host's time."""
        seconds = []
        for _ in range(timings):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            seconds.append((time.perf_counter() - start) / repeats)
        return seconds


class WaitingClock:
    """The host's time until the device has done the calls: for an accelerator without events that time."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        """``synchronize`` waits for the device."""
        self.name, self._synchronize = "perf_counter and synchronize", synchronize

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Seconds per call of the host's time, waiting included."""
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

    The queue is drained once, after all timings: between them the host may run ahead of the device, as
    it does when nobody times it. What the host costs shows as soon as the device waits for it.
    """

    def __init__(self, name: str, mark: Callable[[], Event], synchronize: Callable[[], None]) -> None:
        """``mark`` records a new event, ``synchronize`` waits for the device."""
        self.name, self._mark, self._synchronize = name, mark, synchronize

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Seconds per call of the device's time."""
        marks = []
        for _ in range(timings):
            start = self._mark()
            for _ in range(repeats):
                call()
            marks.append((start, self._mark()))
        self._synchronize()
        return [start.elapsed_time(end) / 1000 / repeats for start, end in marks]


def clock_of(device: Device) -> Clock:
    """The clock for ``device``. Raises ClockError for a fake one, which computes nothing."""
    if device.kind is DeviceKind.FAKE:
        raise ClockError(f"{device.name} computes nothing that could be timed")
    if device.kind is DeviceKind.CPU:
        return HostClock()
    mark = _cuda_mark if device.type == "cuda" else _accelerator_mark
    try:
        # An event needs the index, which the current device has though its name does not.
        indexed = torch.empty(0, device=device.torch_device).device
        clock = EventClock(f"{device.type} events", lambda: mark(indexed), device.synchronize)
        clock.time(lambda: None, repeats=1, timings=1)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        # Back ends say in different ways that their events do not time.
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
    """Raise ClockError unless ``clock`` sees that more work takes longer.

    ``work(side)`` launches the same number of kernels for each of SIDES, with ever more to compute: a
    clock that times launches sees no difference.
    """
    times: list[float] = []
    for side in SIDES:
        call = work(side)
        clock.time(call, repeats=1, timings=2)
        times.append(min(clock.time(call, repeats=1, timings=5)))
        if times[-1] > GROWTH * times[0]:
            return
    seen = ", ".join(f"{seconds * 1e6:.1f}" for seconds in times)
    raise ClockError(f"the clock ({clock.name}) times launches: it sees {seen} µs for ever more work")


def checked_clock(device: Device) -> Clock:
    """The clock for ``device``; of an accelerator, after ``check_clock`` on square matmuls. Raises ClockError."""
    clock = clock_of(device)
    if device.kind is DeviceKind.CPU:
        return clock  # its calls return when their work is done

    def square(side: int) -> Callable[[], object]:
        matrix = torch.ones(side, side, device=device.torch_device)
        return lambda: matrix @ matrix

    with torch.no_grad(), float32_precision("ieee"):
        check_clock(clock, square)
    return clock
