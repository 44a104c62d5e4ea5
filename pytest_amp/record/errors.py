"""Test whether the errors of one tensor in two runs over the same seeds differ by more than chance.

Rounding depends on the last bits of the preceding values: a kernel that sums in another order, or rounds elsewhere with
the same accuracy, gives an independent draw of a tensor's error. The relative difference of two draws is 7 % in the
median for 256 elements and more, 17 % for 16 to 63, and a factor of three for the one element of a loss, whose error
may be zero by chance. So an error is observed for DRAWS seeds, and the spread is estimated from these.

Let d be the differences of the logarithms of the errors, each with the same seed before and now. The error has grown if

- the mean of d is more than PAIRED ranges of d, and more than APART times the mean of the two ranges over seeds (E.
  Lord, The use of range in place of standard deviation in the t-test, Biometrika 34 (1947), 41-67). The range of d
  measures whether the seeds agree, and the ranges over seeds how much one tensor's error varies by chance;
- and the errors are more than LEAST times as large. Three draws may be close to each other by chance, and then
  underestimate the spread. One more rounding of the size of all previous ones multiplies an error by sqrt(2); 1.3 is
  below that, and is the largest ratio of one draw to its prediction (pytest_amp/numerics/tolerance.py: 1.31 in 6415
  tensors).

It has also grown if the error for the run's seed exceeds BEYOND times both the limit and the error of the other run:
that is three times the predicted rounding. A different derivative at a kink changes few seeds only, but those by much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Number of seeds over which errors are observed.
DRAWS = 3
PAIRED = 2.0
APART = 1.0
LEAST = 1.3
BEYOND = 2.0


def growth(before: Sequence[float], now: Sequence[float]) -> tuple[float, float]:
    """Return the factor by which positive errors grew over the seeds, and the factor that chance explains."""
    old, new = ([math.log(error) for error in errors] for errors in (before, now))
    changes = [b - a for a, b in zip(old, new, strict=True)]
    spread = max(PAIRED * _range(changes), APART * (_range(old) + _range(new)) / 2)
    return _exp(sum(changes) / len(changes)), max(LEAST, _exp(spread))


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))  # below the largest float
