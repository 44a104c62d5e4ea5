"""Draw again what chance may explain, before it fails.

A ReLU at its border, a maximum or a rounding that falls the other way can make a correct result exceed its bound with
one seed. Such a result is therefore drawn again with the random values of the next seeds, and each check has a rule for
all draws: the median exceeds the bound, or two of three do, or all do. docs/explanation/false-alarms.md derives the
rates of false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

#: Number of draws that follow the first.
FURTHER_DRAWS = 2

Drawn = TypeVar("Drawn")


def redrawn(draw: Callable[[int], Drawn], seed: int, further: int = FURTHER_DRAWS) -> Iterator[Drawn]:
    """Yield the results of ``draw`` with the ``further`` seeds that follow ``seed``, as long as they are consumed."""
    return map(draw, range(seed + 1, seed + 1 + further))
