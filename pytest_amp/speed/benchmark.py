"""What was measured, shown by pytest-benchmark: its table, its JSON file, its comparisons.

pytest-benchmark times calls itself, with one clock that every device would have to share. So the
measured times are replayed: the fixture's timer is a clock that jumps by each recorded time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pytest_benchmark.fixture import FixtureAlreadyUsed


class ReplayError(RuntimeError):
    """pytest-benchmark did not take the replayed times."""


class ReplayClock:
    """The timer of a test's ``benchmark`` fixture: its usual one, until times are replayed."""

    def __init__(self, usual: Callable[[], float] = time.perf_counter) -> None:
        """``usual`` answers outside a replay, for a test that also times something itself."""
        self._usual = usual
        self._replaying = False
        self._jump = 0.0

    def __call__(self) -> float:
        """Seconds; in a replay 0 before a round and the recorded time after it, so nothing is rounded."""
        if not self._replaying:
            return self._usual()
        now, self._jump = self._jump, 0.0
        return now

    def __repr__(self) -> str:
        """As pytest-benchmark writes the timer into its JSON file."""
        return "replayed"

    def replay(self, benchmark: Any, seconds: list[float]) -> list[float]:  # it has no type
        """Run one round of ``benchmark.pedantic`` for each of ``seconds``; what its statistics took in."""
        times = iter(seconds)

        def round_() -> None:
            # A call beyond the last time is --benchmark-cprofile's.
            self._jump = next(times, 0.0)

        self._replaying = True
        try:
            benchmark.pedantic(round_, rounds=len(seconds), iterations=1)
        finally:
            self._replaying = False
        return list(benchmark.stats.stats.data)


_CLOCK = pytest.StashKey[ReplayClock]()


def install(item: pytest.Item) -> ReplayClock:
    """Give ``item``'s ``benchmark`` fixture a ReplayClock, once. To be called before the fixture is made.

    pytest-benchmark reads the closest ``benchmark`` mark only: the new one repeats what the test's own
    says, and goes in front of it.
    """
    if _CLOCK not in item.stash:
        mark = item.get_closest_marker("benchmark")
        options: dict[str, Any] = dict(mark.kwargs) if mark else {}
        clock = item.stash[_CLOCK] = ReplayClock(options.get("timer", time.perf_counter))
        item.add_marker(pytest.mark.benchmark(**{**options, "timer": clock}), append=False)
    return item.stash[_CLOCK]


class Benchmark:
    """The ``benchmark`` fixture of one test, as far as there is one; made before anything is timed."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        """Make the fixture, unless pytest-benchmark is switched off.

        Under ``--benchmark-skip`` that skips the test. Raises ReplayError if the test made it before, without
        ``install``.
        """
        self._fixture: Any = None
        if not request.config.pluginmanager.hasplugin("benchmark"):
            return
        made = "benchmark" in getattr(request.node, "funcargs", {})
        if made and _CLOCK not in request.node.stash:
            raise ReplayError("the fixture `benchmark` was made before `amp`: name `amp` first")
        self._clock = install(request.node)
        self._fixture = request.getfixturevalue("benchmark")

    def record(self, name: str, seconds: list[float], facts: Mapping[str, object]) -> None:
        """Replay ``seconds``, one round each, and put ``facts`` into ``extra_info["amp"][name]``.

        The row's group is ``name``, unless the test's own mark has one: dtypes of one work stand together.

        Nothing is replayed where pytest-benchmark measures nothing (under xdist, with
        ``--benchmark-disable``), or where the test has given it something before: it takes one series a
        test. Raises ReplayError if its statistics do not rest on ``seconds``.
        """
        if self._fixture is None:
            return
        self._fixture.extra_info.setdefault("amp", {})[name] = facts
        if self._fixture.group is None:
            self._fixture.group = name
        if self._fixture.disabled:
            with contextlib.suppress(FixtureAlreadyUsed):
                self._fixture.pedantic(lambda: None)
        elif self._fixture.stats is None:
            taken = self._clock.replay(self._fixture, seconds)
            if taken != seconds:
                raise ReplayError(f"pytest-benchmark shows {taken[:3]}…, measured were {seconds[:3]}…")
