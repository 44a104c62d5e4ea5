"""How far from the exact values, and from its prediction, mixed precision may be.

``noise`` is the error that rounding should make, ``prediction.Prediction.noise``; excess is
E(amp, exact) / noise and distance E(amp, predicted) / noise. With p and r the predicted and the real
error of a tensor, as vectors, and d = r - p, excess is |r| / |p| and distance |d| / |p|.

- Where every kernel rounds as its model, d is what float32 sums in another order have flipped. In
  a shallow network that is nothing: d = 0, and excess is 1. With depth each flip moves what is behind it, until
  p and r are independent draws of one size: |d| = sqrt(2) |p|, and excess is the ratio of two norms of
  one distribution. Over n elements that share no error it is within 1 +- 2 / sqrt(n); errors that come
  from one rounding far upstream are shared, which leaves a few per cent to tens of per cent.
- EXCESS is 1.5. Measured on torch 2.13, CPU, 112 cases of the suites in both dtypes, 5 seeds, 6415
  tensors of any size without unmodelled operators: median 1.00, 99th percentile 1.17, at most 1.31. No
  threshold sits on one draw: a tensor between EXCESS and CERTAIN is drawn again with other numbers, and only the
  median of three excesses above EXCESS fails; above CERTAIN (2) nothing is drawn again.
- Without a prediction the noise is that of casts made by hand with the same kernels, and CERTAIN is the bound.
- LEAST is 0.5: mixed precision that is more exact than half its rounding did not round. Measured 0.78 at
  least over tensors of 16 elements or more. An error of 1e-7 means that autocast was off.
- MEDIAN_DISTANCE and WORST_DISTANCE are for the same device's kernels with casts made by hand: 0.5 in
  the median of a case, where other kernels that sum in another order (AVX2 against AVX512) made 0.21 at
  most, and 2, where two independent errors are sqrt(2) apart. Where atomics add up in any order (``order``) the two
  steps are independent draws, and only the latter holds. From the prediction a tensor may be
  FARTHEST, sqrt(2) EXCESS, away; measured 1.18 at most over 64 elements or more.

- Where terms cancel, float32 itself is as far from exact as the noise, and mixed precision makes that error, too. It is
  measured, where an error is more than its noise explains: ``cancellation``.

What a global error cannot tell, a rule that barely moves it or a sum that is lost in a deep network, the
local prediction does: ``oracle.verdict``.
"""

from __future__ import annotations

EXCESS = 1.5
CERTAIN = 2.0
LEAST = 0.5
#: Of fewer elements a small error may be chance.
ENOUGH = 16
FARTHEST = 2.0**0.5 * EXCESS
#: What rounding may lose of all outputs, or of all gradients, taken together: beyond it the noise is no
#: rounding, and a tolerance made of it would allow anything. The zoo's own is 0.02 at most.
MOST_NOISE = 0.25
MEDIAN_DISTANCE = 0.5
WORST_DISTANCE = 2.0


def floor(elements: int, u: float) -> float:
    """The least relative error that is taken for noise: u / (2 sqrt(elements)).

    The error of a few values may be small by chance. One rounding to nearest makes about 0.4 u (its
    absolute error is uniform in half a unit of the last place, and mantissas spread over [1, 2)), which
    a tensor's own elements tell to one part in sqrt(elements). For one element, a loss, it is u / 2, so
    that |L_amp - L| may be u |L| at least.
    """
    return u / (2 * elements**0.5) if elements else 0.0


def allowed(noise: float, elements: int, u: float, factor: float = EXCESS) -> float:
    """The relative error that mixed precision in a format of unit roundoff ``u`` may make.

    What float32 itself explains of an error, where terms cancel, is added to it: see ``cancellation``.
    """
    return factor * max(noise, floor(elements, u))
