"""Bounds on the distances of mixed precision from the exact values and from its prediction.

``noise`` (``prediction.Prediction.noise``) is the error that rounding should cause. The excess of a tensor is
E(amp, exact) / noise, its distance E(amp, predicted) / noise. If the vectors p and r are the predicted and the real
error of a tensor, and d = r - p, then excess is |r| / |p| and distance is |d| / |p|.

- Excess and distance: if every kernel rounds as its model says, d consists of roundings that float32 sums in another
  order have flipped. A shallow network has none: d = 0, and excess is 1. In a deep network every flip changes all later
  values, until p and r are independent draws of the same size: |d| = sqrt(2) |p|, and excess is the ratio of two norms
  with the same distribution. Over n elements with independent errors it is within 1 +- 2 / sqrt(n). Elements whose
  errors come from one rounding far upstream are not independent, which leaves a few per cent to tens of per cent.
- EXCESS is 1.5. Measured on torch 2.13, CPU, 112 cases of the suites in both dtypes, 5 seeds, 6415 tensors of any size
  without unmodelled operators: median 1.00, 99th percentile 1.17, at most 1.31. A single draw does not decide: a tensor
  above EXCESS is drawn again with other values, and fails only if the median of three excesses is above EXCESS.
- Reductions in any order, such as atomic additions: each run is an independent draw of the errors, whatever its values.
  The gradient of a bias of eight elements was 2.2 times its noise in one run of eight (``nn.ReplicationPad2d``, fp16,
  H200, torch 2.11). The ratio of two such norms of n elements is at most ``spread(n)``. It is below EXCESS from 55
  elements on; fewer elements are drawn as often as it takes to have 55, at most 14 times, and judged by the root mean
  square over all draws.
- Without a prediction the noise is that of manual casts with the same kernels, and CERTAIN is the bound.
- LEAST is 0.5: if mixed precision is more exact than half its predicted rounding, it did not round. The smallest
  measured excess is 0.78 over tensors of 16 elements or more. An error of 1e-7 means that autocast was off.
- MEDIAN_DISTANCE and WORST_DISTANCE bound the distance from manual casts with the kernels of the same device. The
  former is 0.5 for the median of a case; kernels that sum in another order (AVX2 compared with AVX512) reached 0.21 at
  most. The latter is 2; two independent errors are sqrt(2) apart. With nondeterministic reductions (``order``) the two
  steps are independent draws, and only the latter applies.
- SAME is the distance from manual casts, in units of the noise, up to which a tensor counts as equal to that of manual
  casts. An error above EXCESS is then an error of manual casts, too, but for a tenth of the noise. Atomics of cuDNN's
  backward convolutions gave at most 0.03 (``segresnet``, both dtypes, 12 seeds, H200, torch 2.11).
- FARTHEST, sqrt(2) EXCESS, bounds the distance of a tensor from its prediction; the largest measured distance is 1.18
  over tensors of 64 elements or more.
- Cancellation: if terms cancel, float32 itself is as far from the exact value as the noise, and mixed precision makes
  that error, too. It is measured if an error is larger than its noise explains (``cancellation``).

The local prediction detects what a global error cannot: a rule that hardly changes it, or a sum whose error is lost in
a deep network. See ``oracle.verdict``.
"""

from __future__ import annotations

import math

EXCESS = 1.5
CERTAIN = 2.0
#: Number of standard deviations by which the norms of two independent draws may differ.
DEVIATIONS = 3.0
LEAST = 0.5
#: Number of elements below which a small error may be due to chance.
ENOUGH = 16
FARTHEST = 2.0**0.5 * EXCESS
#: Largest relative noise of all outputs, or of all gradients together. Above it a tolerance that is derived from the
#: noise would allow anything. The built-in cases have 0.02 at most.
MOST_NOISE = 0.25
MEDIAN_DISTANCE = 0.5
WORST_DISTANCE = 2.0
SAME = 0.1


def spread(elements: float) -> float:
    """Return the largest plausible ratio between the norms of two independent draws of ``elements`` errors.

    The logarithm of the norm of n independent values has a standard deviation of 1 / sqrt(2 n), and the difference of
    two such logarithms one of 1 / sqrt(n).
    """
    return math.exp(DEVIATIONS / math.sqrt(elements)) if elements else math.inf


def floor(elements: int, u: float) -> float:
    """Return the smallest relative error that counts as noise: u / (2 sqrt(elements)).

    The error of a few values may be small by chance. One rounding to nearest has a relative error of about 0.4 u (its
    absolute error is uniform within half an ulp, and mantissas spread over [1, 2)), which n elements determine to one
    part in sqrt(n). For a single element, such as a loss L, the result is u / 2, so that |L_amp - L| may be at least
    u |L|.
    """
    return u / (2 * elements**0.5) if elements else 0.0


def allowed(noise: float, elements: int, u: float, factor: float = EXCESS) -> float:
    """Return the largest allowed relative error of mixed precision in a format with unit roundoff ``u``.

    If terms cancel, the error that float32 itself explains is added: see ``cancellation``.
    """
    return factor * max(noise, floor(elements, u))
