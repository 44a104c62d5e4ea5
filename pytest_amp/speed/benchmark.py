"""Measurements in pytest-benchmark's table, JSON file and comparisons.

pytest-benchmark times calls itself, with one clock for all devices. Therefore the measured times are replayed: the
fixture's timer is a clock that advances by each recorded time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pytest_benchmark.fixture import FixtureAlreadyUsed


class ReplayError(RuntimeError):
    """Error if pytest-benchmark did not record the replayed times."""


class ReplayClock:
    """The timer of a test's ``benchmark`` fixture: the usual timer, except during a replay."""

    def __init__(self, usual: Callable[[], float] = time.perf_counter) -> None:
        """Use the timer ``usual`` outside of a replay, for a test that also times something itself."""
        self._usual = usual
        self._replaying = False
        self._jump = 0.0

    def __call__(self) -> float:
        """Return seconds; in a replay 0 before a round and the recorded time after it, so that nothing is rounded."""
        if not self._replaying:
            return self._usual()
        now, self._jump = self._jump, 0.0
        return now

    def __repr__(self) -> str:
        """Return the timer's name in pytest-benchmark's JSON file."""
        return "replayed"

    def replay(self, benchmark: Any, seconds: list[float]) -> list[float]:  # it has no type
        """Run one round of ``benchmark.pedantic`` for each of ``seconds``; return the times in its statistics."""
        times = iter(seconds)

        def round_() -> None:
            # A call after the last time is made by --benchmark-cprofile.
            self._jump = next(times, 0.0)

        self._replaying = True
        try:
            benchmark.pedantic(round_, rounds=len(seconds), iterations=1)
        finally:
            self._replaying = False
        return list(benchmark.stats.stats.data)


_CLOCK = pytest.StashKey[ReplayClock]()


def install(item: pytest.Item) -> ReplayClock:
    """Install a ReplayClock for ``item``'s ``benchmark`` fixture, once; call it before the fixture is set up.

    pytest-benchmark reads the closest ``benchmark`` mark only: the new mark repeats the options of the test's own, and
    precedes it.
    """
    if _CLOCK not in item.stash:
        mark = item.get_closest_marker("benchmark")
        options: dict[str, Any] = dict(mark.kwargs) if mark else {}
        clock = item.stash[_CLOCK] = ReplayClock(options.get("timer", time.perf_counter))
        item.add_marker(pytest.mark.benchmark(**{**options, "timer": clock}), append=False)
    return item.stash[_CLOCK]


class Benchmark:
    """The ``benchmark`` fixture of one test, if pytest-benchmark is active, set up before anything is timed."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        """Set up the fixture, unless pytest-benchmark is disabled.

        Under ``--benchmark-skip`` this skips the test. Raises ReplayError if the test has set it up before, without
        ``install``.
        """
        self._fixture: Any = None
        if not request.config.pluginmanager.hasplugin("benchmark"):
            return
        has_benchmark = "benchmark" in getattr(request.node, "funcargs", {})
        if has_benchmark and _CLOCK not in request.node.stash:
            raise ReplayError("the fixture `benchmark` was made before `amp`: name `amp` first")
        self._clock = install(request.node)
        self._fixture = request.getfixturevalue("benchmark")

    def record(self, name: str, seconds: list[float], facts: Mapping[str, object]) -> None:
        """Replay ``seconds``, one round each, and put ``facts`` into ``extra_info["amp"][name]``.

        The row's group is ``name``, unless the test's mark names one, so that the dtypes of a workload are grouped.
        Nothing is replayed if pytest-benchmark is disabled (under xdist, by ``--benchmark-disable``), or if the test
        has already used the fixture, which accepts one series per test. Raises ReplayError if the recorded statistics
        differ from ``seconds``.
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
            timings = self._clock.replay(self._fixture, seconds)
            if timings != seconds:
                raise ReplayError(f"pytest-benchmark shows {timings[:3]}…, measured were {seconds[:3]}…")
