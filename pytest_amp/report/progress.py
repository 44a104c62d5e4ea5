"""Progress of a long run, family by family."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pytest_amp.run.result import ENDED, Place

if TYPE_CHECKING:
    import pytest

#: Seconds between two lines. A shorter run prints none.
EVERY = 60.0


class Progress:
    """Reporter of progress, which prints the numbers of selected and ended tests of each family at intervals."""

    def __init__(self, every: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock; ``every`` is in seconds of ``clock``, EVERY by default."""
        self._every = EVERY if every is None else every
        self._clock = clock
        self._begun = self._last = clock()

    def say(
        self,
        selected: Mapping[Place, int],
        counts: Mapping[Place, Counter[str]],
        terminal: pytest.TerminalReporter | None,
    ) -> None:
        """Print a line if the interval has passed; ``selected`` and ``counts`` are the numbers of tests by place."""
        now = self._clock()
        if terminal is not None and now - self._last >= self._every:
            self._last = now
            if terminal.currentfspath is None:  # under pytest-xdist, whose dots belong to no file
                terminal.write("\n")
            terminal.ensure_newline()
            terminal.write_line(line(selected, counts, now - self._begun))


def line(selected: Mapping[Place, int], counts: Mapping[Place, Counter[str]], seconds: float) -> str:
    """Return ``amp 02:00  gradients 120 of 600, rules 254 of 254 (2 red)``; completed families come last."""
    total: Counter[str] = Counter()
    done: Counter[str] = Counter()
    red: Counter[str] = Counter()
    for (_, family), count in selected.items():
        total[family] += count
    for (_, family), outcomes in counts.items():
        done[family] += sum(outcomes[name] for name in ENDED)
        red[family] += outcomes["failed"] + outcomes["error"]
    order = sorted(total, key=lambda family: (done[family] >= total[family], family))
    parts = [
        # A failed test whose fixture then errs counts twice, and must not exceed the total.
        f"{family} {min(done[family], total[family])} of {total[family]}"
        + (f" ({red[family]} red)" if red[family] else "")
        for family in order
    ]
    return f"amp {int(seconds) // 60:02d}:{int(seconds) % 60:02d}  {', '.join(parts)}"
