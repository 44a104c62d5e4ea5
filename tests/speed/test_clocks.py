"""Clocks: device events in order, and the check that detects a clock which times launches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from pytest_amp.devices import DeviceKind, find_device
from pytest_amp.devices.cpu import CpuDevice
from pytest_amp.speed import clocks
from pytest_amp.speed.clocks import (
    ClockError,
    Event,
    EventClock,
    HostClock,
    WaitingClock,
    check_clock,
    checked_clock,
    clock_of,
)


class Queue:
    """Device that processes launches in order, while the host's clock stands still."""

    def __init__(self) -> None:
        self.milliseconds = 0.0
        self.log: list[str] = []

    def work(self, milliseconds: float) -> Callable[[], None]:
        def launch() -> None:
            self.log.append("work")
            self.milliseconds += milliseconds

        return launch

    def mark(self) -> Event:
        self.log.append("mark")
        return Mark(self.milliseconds)

    def synchronize(self) -> None:
        self.log.append("synchronize")


class Mark:
    def __init__(self, at: float) -> None:
        self.at = at

    def elapsed_time(self, end: Mark, /) -> float:
        return end.at - self.at


def test_event_clock_encloses_calls_and_synchronizes_once() -> None:
    queue = Queue()
    clock = EventClock("events", queue.mark, queue.synchronize)
    assert clock.time(queue.work(3.0), repeats=2, timings=2) == [pytest.approx(3e-3)] * 2
    assert queue.log == ["mark", "work", "work", "mark"] * 2 + ["synchronize"]


def test_host_clock_measures_the_duration_of_calls() -> None:
    seconds = HostClock().time(lambda: time.sleep(2e-3), repeats=2, timings=3)
    assert len(seconds) == 3
    assert all(2e-3 <= s < 1.0 for s in seconds)


def test_waiting_clock_synchronizes_around_each_timing() -> None:
    queue = Queue()
    seconds = WaitingClock(queue.synchronize).time(queue.work(3.0), repeats=2, timings=2)
    assert queue.log == ["synchronize"] + ["work", "work", "synchronize"] * 2
    assert all(0 < s < 1.0 for s in seconds)


def test_clock_that_measures_the_work_passes() -> None:
    queue = Queue()
    check_clock(EventClock("events", queue.mark, queue.synchronize), lambda side: queue.work(side**3 / 1e6))


def test_clock_check_ends_with_the_first_clear_size() -> None:
    """The check ends with the first size that takes clearly longer."""
    queue = Queue()
    check_clock(EventClock("events", queue.mark, queue.synchronize), lambda side: queue.work(side**3 / 1e6))
    assert queue.log.count("work") == 2 * 7


def test_clock_that_times_launches_is_refused() -> None:
    """The host's clock around calls that only enqueue shows the same time for much work as for little."""
    queue = Queue()
    with pytest.raises(ClockError, match=r"perf_counter.* times launches"):
        check_clock(HostClock(), lambda side: queue.work(side**3 / 1e6))


def test_cpu_uses_the_host_clock() -> None:
    assert isinstance(checked_clock(find_device("cpu")), HostClock)


def test_fake_device_has_no_clock() -> None:
    with pytest.raises(ClockError, match="fake:cuda computes nothing"):
        clock_of(find_device("fake:cuda"))


class OwnDevice(CpuDevice):
    """Accelerator in name, which computes on the CPU, for which torch has no events."""

    kind = DeviceKind.ACCELERATOR


@pytest.mark.usefixtures("one_thread")
def test_accelerator_without_events_uses_a_waiting_clock() -> None:
    assert isinstance(checked_clock(OwnDevice()), WaitingClock)


@pytest.mark.usefixtures("one_thread")
def test_accelerator_events_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use marks of the host's time as events, then marks that hardly move."""
    monkeypatch.setattr(clocks, "_accelerator_mark", lambda _: Mark(1000 * time.perf_counter()))
    assert checked_clock(OwnDevice()).name == "cpu events"
    ticks = itertools.count()
    monkeypatch.setattr(clocks, "_accelerator_mark", lambda _: Mark(next(ticks)))
    monkeypatch.setattr(clocks, "SIDES", (64, 128, 256))
    with pytest.raises(ClockError, match="times launches"):
        checked_clock(OwnDevice())
