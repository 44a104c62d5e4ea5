"""Paired measurement of two implementations of the same work: ABBA quads with one log-ratio each.

In a quad the reference is timed first and last, the candidate twice in between: exponential drift over the quad
(clocks, heat) cancels. A block is the fastest of a few timings, which drops disturbances, since these only lengthen a
timing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_amp.speed.clocks import Clock, ClockError
from pytest_amp.speed.verdict import LOOKS, Outcome


@dataclass(frozen=True)
class Arms:
    """Two calls that do the same work on the same data.

    ``reference`` runs in float32, ``candidate`` under autocast.
    """

    reference: Callable[[], object]
    candidate: Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """Parameters of a measurement. Times are in seconds.

    ``timings`` is the number of timings in a block, ``shortest`` the least duration of one timing (a shorter call is
    repeated within it), ``warm_up`` the duration of the warm-up of both arms, and ``budget`` the duration of the
    measurement: a look that would exceed it is not begun (twice the budget while undecided), and if even the first look
    would exceed it, blocks have fewer timings.
    """

    timings: int = 5
    shortest: float = 1e-3
    warm_up: float = 0.2
    budget: float = 5.0


@dataclass(frozen=True)
class Quad:
    """Four blocks in the order in which they ran, each the seconds per call of its timings."""

    reference_first: tuple[float, ...]
    candidate_first: tuple[float, ...]
    candidate_last: tuple[float, ...]
    reference_last: tuple[float, ...]

    @property
    def reference(self) -> tuple[float, float]:
        """The seconds per call of the two blocks of the reference."""
        return min(self.reference_first), min(self.reference_last)

    @property
    def candidate(self) -> tuple[float, float]:
        """The seconds per call of the two blocks of the candidate."""
        return min(self.candidate_first), min(self.candidate_last)

    @property
    def log_ratio(self) -> float:
        """The logarithm of the speedup: reference over candidate, geometric means."""
        return 0.5 * (sum(map(math.log, self.reference)) - sum(map(math.log, self.candidate)))


class Measurement:
    """One paired measurement: the constructor warms up both arms, and ``quad`` extends it."""

    #: The least share of the wall time of a block that a clock must measure.
    SMALLEST_COVERAGE = 0.5
    #: The number of budgets that an undecided measurement may use: a verdict matters more than a narrow interval.
    PATIENCE = 2
    #: The largest number of repeats of a call within a timing.
    MOST_REPEATS = 1 << 14

    def __init__(self, arms: Arms, clock: Clock, plan: Plan, *, now: Callable[[], float] = time.perf_counter) -> None:
        """Warm up both arms in turn, and determine the number of repeats of a call; ``now`` is the wall clock."""
        self.clock, self.plan, self._now = clock, plan, now
        self.quads: list[Quad] = []
        self._start = now()
        self._arms = (arms.reference, arms.candidate)
        for call in self._arms:
            clock.time(call, repeats=1, timings=2)
        self.repeats = tuple(self._repeats_of(call) for call in self._arms)
        self.coverage = 0.0
        seconds = self._warm_up()
        affordable = 0.8 * self.plan.budget / (2 * LOOKS[0] * seconds)
        self.timings = max(1, min(self.plan.timings, int(affordable)))

    def _repeats_of(self, call: Callable[[], object]) -> int:
        repeats = 1
        while repeats < self.MOST_REPEATS:
            if min(self.clock.time(call, repeats=repeats, timings=3)) * repeats >= self.plan.shortest:
                break
            repeats *= 2
        return repeats

    def _warm_up(self) -> float:
        """Run both arms in turn; return the wall time of one timing, and set the share that the clock measured."""
        end = self._now() + self.plan.warm_up
        fastest = math.inf
        while fastest == math.inf or self._now() < end:
            began = self._now()
            coverages = [self._coverage(arm) for arm in (0, 1)]
            fastest = min(fastest, self._now() - began)
            self.coverage = max(self.coverage, min(coverages))
        return max(fastest, 1e-9) / 2

    def _coverage(self, arm: int) -> float:
        began = self._now()
        timed = sum(self._block(arm, timings=2)) * self.repeats[arm]
        return timed / max(self._now() - began, 1e-9)

    def _block(self, arm: int, timings: int) -> tuple[float, ...]:
        seconds = tuple(self.clock.time(self._arms[arm], repeats=self.repeats[arm], timings=timings))
        if min(seconds) <= 0:
            raise ClockError(f"{self.clock.name} stood still over {self.repeats[arm]} calls")
        return seconds

    def quad(self) -> float:
        """Measure one more quad; return its log-ratio."""
        blocks = [self._block(arm, self.timings) for arm in (0, 1, 1, 0)]
        self.quads.append(Quad(*blocks))
        return self.quads[-1].log_ratio

    def affordable(self, further: int, outcome: Outcome) -> bool:
        """Return whether ``further`` quads fit into the budget, extrapolated from the time used so far.

        While the ``outcome`` is inconclusive, they may use PATIENCE budgets.
        """
        elapsed = self._now() - self._start
        budget = self.plan.budget * (self.PATIENCE if outcome is Outcome.INCONCLUSIVE else 1)
        return elapsed * (1 + further / max(len(self.quads), 1)) <= budget

    @property
    def reference(self) -> list[float]:
        """The blocks of the reference in time order, seconds per call."""
        return [block for quad in self.quads for block in quad.reference]

    @property
    def candidate(self) -> list[float]:
        """The blocks of the candidate in time order, seconds per call."""
        return [block for quad in self.quads for block in quad.candidate]

    @property
    def spread(self) -> float:
        """The 90th percentile of an arm's blocks over the 10th, the larger one of both arms."""
        return max(_spread(self.reference), _spread(self.candidate))

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reason not to trust the clock for this work: it measured too little of the wall time; empty if none."""
        if self.coverage >= self.SMALLEST_COVERAGE:
            return ()
        covered = f"the clock saw {self.coverage:.0%} of the time that passed"
        return (f"{covered}: the work runs where it does not look, such as on another stream",)


def _spread(blocks: list[float]) -> float:
    ordered = sorted(blocks)
    last = len(ordered) - 1
    return ordered[int(0.9 * last)] / ordered[int(0.1 * last)]
