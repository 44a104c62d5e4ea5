"""Bounds on the distances of mixed precision from the exact values and from its prediction.

``noise`` is the error that rounding should make, ``prediction.Prediction.noise``; excess is
E(amp, exact) / noise and distance E(amp, predicted) / noise. With p and r the predicted and the real
error of a tensor, as vectors, and d = r - p, excess is |r| / |p| and distance |d| / |p|.

- If every kernel rounds as its model, d consists of roundings that float32 sums in another order have flipped. In a
  shallow network there are none: d = 0, and excess is 1. With depth each flip changes all later values, until p and r
  are independent draws of one size: |d| = sqrt(2) |p|, and excess is the ratio of two norms of one distribution. Over n
  elements that share no error it is within 1 +- 2 / sqrt(n); errors that come from one rounding far upstream are
  shared, which leaves a few per cent to tens of per cent.
- EXCESS is 1.5. Measured on torch 2.13, CPU, 112 cases of the suites in both dtypes, 5 seeds, 6415 tensors of any size
  without unmodelled operators: median 1.00, 99th percentile 1.17, at most 1.31. No threshold applies to a single draw:
  a tensor between EXCESS and CERTAIN is drawn again with other values, and only the median of three excesses above
  EXCESS fails; above CERTAIN (2) nothing is drawn again.
- Without a prediction the noise is that of manual casts with the same kernels, and CERTAIN is the bound.
- LEAST is 0.5: mixed precision that is more exact than half its rounding did not round. Measured 0.78 at least over
  tensors of 16 elements or more. An error of 1e-7 means that autocast was off.
- MEDIAN_DISTANCE and WORST_DISTANCE are for the same device's kernels with manual casts: 0.5 in the median of a case,
  for which kernels that sum in another order (AVX2 against AVX512) made 0.21 at most, and 2, where two independent
  errors are sqrt(2) apart. With nondeterministic reductions (``order``) the two steps are independent draws, and only
  the latter holds. From the prediction a tensor may be FARTHEST, sqrt(2) EXCESS, away; measured 1.18 at most over 64
  elements or more.
- Where terms cancel, float32 itself is as far from exact as the noise, and mixed precision makes that error, too. It is
  measured if an error is larger than its noise explains: ``cancellation``.

The local prediction detects what a global error cannot: a rule that hardly changes it, or a sum whose error is lost in
a deep network. See ``oracle.verdict``.
"""

from __future__ import annotations

EXCESS = 1.5
CERTAIN = 2.0
LEAST = 0.5
#: The number of elements below which a small error may be chance.
ENOUGH = 16
FARTHEST = 2.0**0.5 * EXCESS
#: The largest share of all outputs, or of all gradients together, that rounding may lose: above it a tolerance that is
#: derived from the noise would allow anything. The zoo's own is 0.02 at most.
MOST_NOISE = 0.25
MEDIAN_DISTANCE = 0.5
WORST_DISTANCE = 2.0


def floor(elements: int, u: float) -> float:
    """Return the smallest relative error that counts as noise: u / (2 sqrt(elements)).

    The error of a few values may be small by chance. One rounding to nearest makes about 0.4 u (its absolute error is
    uniform in half a unit of the last place, and mantissas spread over [1, 2)), which the tensor's own elements
    determine to one part in sqrt(elements). For one element, a loss, the result is u / 2, so that |L_amp - L| may be u
    |L| at least.
    """
    return u / (2 * elements**0.5) if elements else 0.0


def allowed(noise: float, elements: int, u: float, factor: float = EXCESS) -> float:
    """Return the largest allowed relative error of mixed precision in a format of unit roundoff ``u``.

    The error that float32 itself explains, where terms cancel, is added to it: see ``cancellation``.
    """
    return factor * max(noise, floor(elements, u))
