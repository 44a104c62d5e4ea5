"""Clocks: device events in order, and the check that finds a clock which times launches."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from pytest_amp.devices import DeviceKind, find_device
from pytest_amp.devices.cpu import CpuDevice
from pytest_amp.speed import clocks
from pytest_amp.speed.clocks import ClockError, Event, EventClock, HostClock, check_clock, checked_clock, clock_of


class Queue:
    """A device that works through launches in order, while the host's clock stands still."""

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


def test_events_enclose_the_calls_and_the_device_is_waited_for_once() -> None:
    queue = Queue()
    clock = EventClock("events", queue.mark, queue.synchronize)
    assert clock.time(queue.work(3.0), repeats=2, timings=2) == [pytest.approx(3e-3)] * 2
    assert queue.log == ["mark", "work", "work", "mark"] * 2 + ["synchronize"]


def test_the_host_clock_times_what_a_call_takes() -> None:
    seconds = HostClock().time(lambda: time.sleep(2e-3), repeats=2, timings=3)
    assert len(seconds) == 3
    assert all(2e-3 <= s < 1.0 for s in seconds)


def test_a_clock_that_sees_the_work_passes() -> None:
    queue = Queue()
    check_clock(EventClock("events", queue.mark, queue.synchronize), queue.work(0.1), queue.work(6.4))


def test_a_clock_that_times_launches_is_found() -> None:
    """The host's clock around calls that only enqueue: as long for much work as for little."""
    queue = Queue()
    with pytest.raises(ClockError, match=r"perf_counter.* times launches"):
        check_clock(HostClock(), queue.work(0.1), queue.work(6.4))


def test_the_clock_of_a_cpu_is_the_hosts() -> None:
    assert isinstance(checked_clock(find_device("cpu")), HostClock)


class OwnDevice(CpuDevice):
    """Calls itself an accelerator, and computes on the CPU."""

    kind = DeviceKind.ACCELERATOR


@pytest.mark.parametrize("sees_work", [True, False])
def test_the_clock_of_an_accelerator_is_checked(sees_work: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    """With marks of the host's time as events, and with marks that do not move."""
    monkeypatch.setattr(clocks, "SIDES", (64, 512))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(clocks, "_accelerator_mark", lambda _: Mark(1000 * time.perf_counter() if sees_work else 0.0))
    try:
        if sees_work:
            assert checked_clock(OwnDevice()).name == "cpu events"
        else:
            with pytest.raises(ClockError, match="times launches"):
                checked_clock(OwnDevice())
    finally:
        torch.set_num_threads(threads)


def test_a_fake_device_has_no_clock() -> None:
    with pytest.raises(ClockError, match="fake:cuda computes nothing"):
        clock_of(find_device("fake:cuda"))


def test_a_device_that_is_not_there_has_no_clock() -> None:
    with pytest.raises(ClockError, match="no events that time"):
        clock_of(find_device("privateuse1"))
