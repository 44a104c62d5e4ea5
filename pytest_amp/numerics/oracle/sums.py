"""The error of float32 sums, and the error that shows that a result was rounded to a low dtype on the way.

Let u be float32's unit roundoff, 2**-24, and a result the sum of n terms, its error relative to the sum of their
absolute values.

- In any order, a term goes through n - 1 additions at most, and the error is n u at most (N. J. Higham, Accuracy and
  Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 4.2). No sum in float32 exceeds it: ``certain``.
- Equal terms come near this bound. As long as the sum stays between two powers of two, each addition makes the same
  error, at most half a unit of its last place; over all powers that it passes this is 3/8 n u at most, and u n / 3 at a
  power of two. Measured 0.11 to 0.23 n u for columns of 4096 to 131072 equal rows (torch 2.13.0, CPU with AVX512: the
  gradient of a norm's bias for a mean loss, embedding, index_add, mm), 0.02 n u if 16 of a row are added in parallel
  (log_softmax's backward of a smoothed loss). From n of some thousands on this is more than fp16's rounding, so that an
  error alone does not show whether a long sum was rounded.
- Distinct terms do not. Their roundings are independent and have mean zero: one of a partial sum T has the standard
  deviation 0.43 u T (uniform in half a unit of the last place, mantissas spread over [1, 2)), and n of them, for
  positive terms in a row, 0.43 u sqrt(n / 3) = 0.25 sqrt(n) u of the sum; it grows with sqrt(n), not with n (N. J.
  Higham and T. Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41 (2019),
  A2815-A2835). sqrt(n) u is four standard deviations: ``probable``.

Therefore a float32 error that is too large for a short sum, but not for a long one (for an operator other than a sum,
whose terms are unknown, any such error), is measured again: by the same kernel, on the same arguments, each element
multiplied by its own random factor within a quarter of 1 (``other_numbers``). A float32 sum of these stays within
``probable``; a kernel that rounds to the low dtype on the way does so with any values.
"""

from __future__ import annotations

import math

import torch

from pytest_amp.precision import FP32


def roundoff(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a dtype."""
    return float(torch.finfo(dtype).eps) / 2


def most_of_float32(low: torch.dtype) -> float:
    """Return the error below which a float32 result was not rounded to ``low`` on the way.

    It is the geometric mean of the two formats' roundoffs: 90 float32 roundings for fp16, 256 for bf16. Measured 22 at
    most except for long sums (torch 2.13, CPU).
    """
    return most_of(roundoff(low))


def most_of(u: float) -> float:
    """Return ``most_of_float32`` of the format whose unit roundoff is ``u``."""
    return math.sqrt(FP32.u * u)


def certain(terms: int) -> float:
    """Return the error that no float32 sum of ``terms`` terms exceeds, in any order."""
    return terms * FP32.u


def probable(terms: int) -> float:
    """Return the error that a sequential float32 sum of ``terms`` distinct terms does not exceed."""
    return math.sqrt(terms) * FP32.u


#: The relative change of values: far more than a rounding, and no sign or zero changes.
SPREAD = 0.25


def other_numbers(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Multiply each element by its own random factor in 1 +- SPREAD; torch's default generator is not used."""
    factors = 1 + SPREAD * (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu") - 1)
    result = torch.empty_like(tensor)
    result.copy_(tensor.detach().to("cpu") * factors)
    return result
