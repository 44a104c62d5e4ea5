"""Two runs' errors of one tensor over the same seeds, and whether they lie further apart than chance puts them.

Rounding is decided by the last bits of what comes before: a kernel that sums in another order, or rounds elsewhere as
well as before, draws a tensor's error anew. By how much two draws differ depends on the tensor: 7 % in the median over
256 elements and more, 17 % over 16 to 63, and for the one element of a loss, whose error may be nothing by chance, it
is a factor of three. So an error is observed with the numbers of DRAWS seeds, and the spread is taken from those.

Of the logarithms of the errors, each with the same seed before and now, d are the differences. The error has grown if

- the mean of d is more than PAIRED ranges of d, and more than APART times the mean of the two ranges over seeds
  (E. Lord, The use of range in place of standard deviation in the t-test, Biometrika 34 (1947), 41-67). The range of
  d tells whether every seed says the same; those over seeds, what chance can make of one tensor.
- and the errors are more than LEAST times as large. Three draws may lie close together by chance, and then say
  little of the spread. One more rounding of the size of all before makes sqrt(2) of an error; 1.3 is below that, and
  is what one draw was of its prediction at most (pytest_amp/numerics/tolerance.py: 1.31 in 6415 tensors).

It has grown as well if the run's own seed is off by more than BEYOND times what the other run's check allowed, and than
that run was: that is three times the predicted rounding. Another derivative at a kink shows in a few seeds only, and
there by far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Over how many seeds errors are observed.
DRAWS = 3
PAIRED = 2.0
APART = 1.0
LEAST = 1.3
BEYOND = 2.0


def growth(before: Sequence[float], now: Sequence[float]) -> tuple[float, float]:
    """By what factor positive errors grew over the seeds, and up to which chance explains it."""
    old, new = ([math.log(error) for error in errors] for errors in (before, now))
    changes = [b - a for a, b in zip(old, new, strict=True)]
    spread = max(PAIRED * _range(changes), APART * (_range(old) + _range(new)) / 2)
    return _exp(sum(changes) / len(changes)), max(LEAST, _exp(spread))


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))  # below the largest float
