"""How far from the exact values, and from its reference, mixed precision may be.

``noise`` is the error of the reference: E(reference, exact) of ``prediction.Prediction``. The numbers
below were measured with the zoo on torch 2.13 (8 seeds, bf16 and fp16, outputs, gradients and buffers:
1968 tensors of 64 elements or more), where healthy mixed precision was computed by other kernels than
its reference: AVX2 against AVX512 with its bf16 instructions, which sum in another order. With the
same kernels, on one device, noise is met exactly.

- E(amp, exact) / noise was 1.00 in the median, 1.26 at the 99th percentile and 1.57 at most: two sets
  of roundings that no longer have anything in common differ that much on the few tensors in which one
  large error dominates. FACTOR is 2. On the same tensors, gradients times 1.01 made 7.3 in the median,
  BatchNorm in the low dtype 50000 on its statistics, LayerNorm in the low dtype 6 on the last norm.
- E(amp, reference) / noise of a case, in the median over its tensors, was 0.21 at most, and its worst
  tensor 1.43 (two independent errors of one size are sqrt(2) apart). MEDIAN_DISTANCE is 0.5 and
  WORST_DISTANCE 2. LayerNorm in the low dtype made a median of 0.6 to 1.3, sums rounded every 16
  elements 1.2, cross-entropy in the low dtype 0.7.
"""

from __future__ import annotations

FACTOR = 2.0
#: What casts made by hand may lose of all outputs, or of all gradients, taken together: beyond it the noise is no
#: rounding, and a tolerance made of it would allow anything. The zoo's own is 0.02 at most.
MOST_NOISE = 0.25
MEDIAN_DISTANCE = 0.5
WORST_DISTANCE = 2.0


def floor(elements: int, u: float) -> float:
    """The least relative error that is taken for noise: u / (2 sqrt(elements)).

    The error of a few values may be small by chance. One rounding to nearest makes about 0.4 u (its
    absolute error is uniform in half a unit of the last place, and mantissas spread over [1, 2)), which
    a tensor's own elements tell to one part in sqrt(elements).
    """
    return u / (2 * elements**0.5) if elements else 0.0


def allowed(noise: float, elements: int, u: float) -> float:
    """The relative error that mixed precision in a format of unit roundoff ``u`` may make."""
    return FACTOR * max(noise, floor(elements, u))
