"""Errors of one tensor in two runs over the same seeds: whether they differ by more than chance explains.

Rounding is decided by the last bits of the preceding values: a kernel that sums in another order, or rounds elsewhere
equally well, draws a tensor's error anew. The difference of two draws depends on the tensor: 7 % in the median over 256
elements and more, 17 % over 16 to 63, and for the one element of a loss, whose error may be nothing by chance, it is a
factor of three. So an error is observed with the values of DRAWS seeds, and the spread is taken from those.

Let d be the differences of the logarithms of the errors, each with the same seed before and now. The error has grown if

- the mean of d is more than PAIRED ranges of d, and more than APART times the mean of the two ranges over seeds (E.
  Lord, The use of range in place of standard deviation in the t-test, Biometrika 34 (1947), 41-67). The range of d
  tells whether all seeds agree; those over seeds tell how far chance moves one tensor.
- and the errors are more than LEAST times as large. Three draws may lie close together by chance, and then tell little
  about the spread. One more rounding of the size of all previous ones multiplies an error by sqrt(2); 1.3 is below
  that, and is the largest ratio of one draw to its prediction (pytest_amp/numerics/tolerance.py: 1.31 in 6415 tensors).

It has also grown if the run's own seed exceeds BEYOND times the limit of the other run's check, and of that run's
error: that is three times the predicted rounding. A different derivative at a kink shows in few seeds only, but
strongly there.
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
