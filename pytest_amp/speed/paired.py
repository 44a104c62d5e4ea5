"""Two ways to do the same work, timed in turn: ABBA quads, one log-ratio each.

In a quad the reference is timed first and last, the candidate twice between: whatever drifts
exponentially over the quad (clocks, heat) cancels. A block is the fastest of a few timings, which
drops what only ever makes a timing longer.
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

    ``reference`` does it in float32, ``candidate`` under autocast.
    """

    reference: Callable[[], object]
    candidate: Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """How a measurement is taken. Times are in seconds.

    ``timings`` is the number of timings in a block, ``shortest`` what one timing lasts at least (a
    shorter call is repeated within it), ``warm_up`` how long both arms run before, and ``budget`` what
    the measurement may take: a look that would end later is not begun (twice that while nothing is decided), and
    where even the first look would, blocks have fewer timings.
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
        """The two blocks of the reference."""
        return min(self.reference_first), min(self.reference_last)

    @property
    def candidate(self) -> tuple[float, float]:
        """The two blocks of the candidate."""
        return min(self.candidate_first), min(self.candidate_last)

    @property
    def log_ratio(self) -> float:
        """The logarithm of the speedup: reference over candidate, geometric means."""
        return 0.5 * (sum(map(math.log, self.reference)) - sum(map(math.log, self.candidate)))


class Measurement:
    """One paired measurement: made and warmed by the constructor, extended by ``quad``."""

    #: Of the wall time of a block, the least that a clock must see.
    SMALLEST_COVERAGE = 0.5
    #: Budgets that an undecided measurement may take: a verdict is worth more than a narrow interval.
    PATIENCE = 2
    #: Repeats of a call within a timing, at most.
    MOST_REPEATS = 1 << 14

    def __init__(self, arms: Arms, clock: Clock, plan: Plan, *, now: Callable[[], float] = time.perf_counter) -> None:
        """Warm both arms in turn, and find how often a call is repeated; ``now`` is the wall clock."""
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
        """Run both arms in turn; the wall time of one timing of each, and how much of it the clock saw."""
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
        seen = sum(self._block(arm, timings=2)) * self.repeats[arm]
        return seen / max(self._now() - began, 1e-9)

    def _block(self, arm: int, timings: int) -> tuple[float, ...]:
        seconds = tuple(self.clock.time(self._arms[arm], repeats=self.repeats[arm], timings=timings))
        if min(seconds) <= 0:
            raise ClockError(f"{self.clock.name} stood still over {self.repeats[arm]} calls")
        return seconds

    def quad(self) -> float:
        """Measure one more quad; its log-ratio."""
        blocks = [self._block(arm, self.timings) for arm in (0, 1, 1, 0)]
        self.quads.append(Quad(*blocks))
        return self.quads[-1].log_ratio

    def affordable(self, further: int, outcome: Outcome) -> bool:
        """Whether ``further`` quads still fit into the budget, going by the time that this took so far.

        Into PATIENCE budgets, while the ``outcome`` is inconclusive.
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
        """The 90th percentile of an arm's blocks over its 10th, of the arm in which that is larger."""
        return max(_spread(self.reference), _spread(self.candidate))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the clock cannot be trusted with this work: it saw too little of what its user waited for."""
        if self.coverage >= self.SMALLEST_COVERAGE:
            return ()
        seen = f"the clock saw {self.coverage:.0%} of the time that passed"
        return (f"{seen}: the work runs where it does not look, such as on another stream",)


def _spread(blocks: list[float]) -> float:
    ordered = sorted(blocks)
    last = len(ordered) - 1
    return ordered[int(0.9 * last)] / ordered[int(0.1 * last)]
