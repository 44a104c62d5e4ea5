"""A clock without time: a call returns the seconds that it took."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from pytest_amp.speed.paired import Arms


class SimulatedClock:
    """Believes what each call says that it took; its own ``now`` moves by as much."""

    name = "simulated"

    def __init__(self) -> None:
        """Start at 0."""
        self.seconds = 0.0

    def now(self) -> float:
        """The simulated wall clock."""
        return self.seconds

    def time(self, call: Callable[[], object], *, repeats: int, timings: int) -> list[float]:
        """What the last call of each timing says."""
        found = []
        for _ in range(timings):
            took = [float(str(call())) for _ in range(repeats)]
            self.seconds += sum(took)
            found.append(sum(took) / repeats)
        return found


def taking(reference: float | Iterable[float], candidate: float | Iterable[float]) -> Arms:
    """Arms that take so many seconds, call after call."""
    sources = [_endless(seconds) for seconds in (reference, candidate)]
    return Arms(lambda: next(sources[0]), lambda: next(sources[1]))


def _endless(seconds: float | Iterable[float]) -> Iterator[float]:
    return itertools.repeat(seconds) if isinstance(seconds, (int, float)) else itertools.cycle(seconds)
