"""Progress of a long run, family by family."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_amp.run.tally import EXECUTED

if TYPE_CHECKING:
    import pytest

    from pytest_amp.run.tally import Tally

#: Seconds between two lines. A shorter run prints none.
EVERY = 60.0


class Progress:
    """Reporter of how many of the selected tests of each family are done, at intervals."""

    def __init__(self, every: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock; ``every`` is in seconds of ``clock``, EVERY by default."""
        self._every = EVERY if every is None else every
        self._clock = clock
        self._begun = self._last = clock()

    def say(self, tally: Tally, terminal: pytest.TerminalReporter | None) -> None:
        """Print a line if the interval has passed."""
        now = self._clock()
        if terminal is not None and now - self._last >= self._every:
            self._last = now
            if terminal.currentfspath is None:  # under pytest-xdist, whose dots belong to no file
                terminal.write("\n")
            terminal.ensure_newline()
            terminal.write_line(line(tally, now - self._begun))


def line(tally: Tally, seconds: float) -> str:
    """Return ``amp 02:00  gradients 120 of 600, rules 254 of 254 (2 red)``; completed families come last."""
    done: dict[str, int] = {}
    red: dict[str, int] = {}
    selected: dict[str, int] = {}
    for (_, family), count in tally.selected.items():
        selected[family] = selected.get(family, 0) + count
    for (_, family), counts in tally.outcomes.items():
        done[family] = done.get(family, 0) + sum(counts[name] for name in (*EXECUTED, "skipped", "inconclusive"))
        red[family] = red.get(family, 0) + counts["failed"] + counts["error"]
    order = sorted(selected, key=lambda family: (done.get(family, 0) >= selected[family], family))
    parts = [
        # A failed test whose fixture then errs counts twice, and must not exceed the total.
        f"{family} {min(done.get(family, 0), selected[family])} of {selected[family]}"
        + (f" ({red[family]} red)" if red.get(family) else "")
        for family in order
    ]
    return f"amp {int(seconds) // 60:02d}:{int(seconds) % 60:02d}  {', '.join(parts)}"
