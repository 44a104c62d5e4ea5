"""Simulated clock: a call returns the seconds that it took.

The unit is seconds rather than milliseconds, so that real time is negligible.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.precision import BF16
from pytest_amp.record import Observe
from pytest_amp.speed import Arms, Demand, Interval, Measured, Plan, SpeedConditions, TimedStep, check_speedup
from pytest_amp.speed.workloads import Autocast


class SimulatedClock:
    """Clock that uses the duration that each call returns; its own ``now`` advances by as much."""

    name = "simulated"

    def __init__(self) -> None:
        """Start at 0."""
        self.seconds = 0.0

    def now(self) -> float:
        """Return the simulated wall clock."""
        return self.seconds

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """Return the durations that the last call of each timing returned."""
        actual = []
        for _ in range(timings):
            took = [float(str(call())) for _ in range(repeats)]
            self.seconds += sum(took)
            actual.append(sum(took) / repeats)
        return actual


def taking(reference: float | Iterable[float], candidate: float | Iterable[float]) -> Arms:
    """Return arms whose calls take these seconds, one after the other."""
    sources = [_endless(seconds) for seconds in (reference, candidate)]
    return Arms(lambda: next(sources[0]), lambda: next(sources[1]))


def _endless(seconds: float | Iterable[float]) -> Iterator[float]:
    return itertools.repeat(seconds) if isinstance(seconds, (int, float)) else itertools.cycle(seconds)


def step_taking(reference: float | Iterable[float], candidate: float | Iterable[float]) -> TimedStep:
    """Return a step whose calls take these seconds, one after the other: ``candidate`` within autocast."""
    sources = {False: _endless(reference), True: _endless(candidate)}

    def step(autocast: Autocast) -> float:
        with autocast():
            return next(sources[torch.is_autocast_enabled("cpu")])

    return step


def check_simulated(
    request: pytest.FixtureRequest,
    *,
    reference: float | Iterable[float] = 3.0,
    candidate: float | Iterable[float] = 2.0,
    floor: float = 1.2,
    mode: str = "gate",
    strict: bool = False,
    observe: Observe | None = None,
    before: Interval | None = None,
    doubts: tuple[str, ...] = (),
) -> Measured | None:
    """Run ``check_speedup`` on the CPU in bf16, for work called "sums" that returns its duration."""
    conditions = SpeedConditions(
        find_device("cpu"),
        BF16,
        mode,
        "by request",
        strict=strict,
        observe=observe,
        before=lambda name: before if name == "sums/over-fp32/step/speedup" else None,
        doubts=lambda _: doubts,
    )
    demand = Demand("sums", floor, "fp32", plan=Plan(warm_up=0))
    return check_speedup(lambda: step_taking(reference, candidate), demand, conditions, request, clock=SimulatedClock())
