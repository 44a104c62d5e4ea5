"""What float32 loses where it adds numbers up, and the error that shows that a result was low on its way.

Let u be float32's unit roundoff, 2**-24, and a result the sum of n terms, its error relative to the sum of their
absolute values.

- Whatever the order, a term goes through n - 1 additions at most, and the error is n u at most (N. J. Higham, Accuracy
  and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 4.2). No sum in float32 exceeds it: ``certain``.
- Equal terms come near it. As long as the sum stays between two powers of two, each addition makes the same error, half
  a unit of its last place at most; over all the powers that it passes this is 3/8 n u at most, and u n / 3 at a power
  of two. Measured 0.11 to 0.23 n u for columns of 4096 to 131072 equal rows (torch 2.13.0, CPU with AVX512: what goes
  back to the bias of a norm from a mean loss, embedding, index_add, mm), 0.02 n u where 16 of a row are added side by
  side (log_softmax going back from a smoothed loss). From n of some thousands on this is more than what
  fp16 rounds, so that an error alone does not tell whether a long sum was low.
- Terms that differ do not. Their roundings are independent of one another and have mean zero: one of a partial sum T
  has the standard deviation 0.43 u T (uniform in half a unit of the last place, mantissas spread over [1, 2)), and n of
  them, for positive terms in a row, 0.43 u sqrt(n / 3) = 0.25 sqrt(n) u of the sum; it grows with sqrt(n), not with n
  (N. J. Higham and T. Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41 (2019),
  A2815-A2835). sqrt(n) u is four standard deviations: ``probable``.

So a float32 error that is too large for a short sum, and not for a long one (of an operator that is more than a sum
its terms are not known, and any such error), is measured again: by the same kernel, on the same arguments, each
number of which is multiplied by one of its own within a quarter of 1 (``other_numbers``). A float32 sum of these
keeps to ``probable``; a kernel that rounds to the low dtype on its way does so with any numbers.
"""

from __future__ import annotations

import math

import torch

from pytest_amp.precision import FP32


def roundoff(dtype: torch.dtype) -> float:
    """The unit roundoff of a dtype."""
    return float(torch.finfo(dtype).eps) / 2


def most_of_float32(low: torch.dtype) -> float:
    """The error below which a float32 result was not ``low`` on its way.

    The geometric mean of the two formats' roundoffs, as many times one as it is a part of the other: 90 float32
    roundings in fp16, 256 in bf16. Measured 22 at most but for long sums (torch 2.13, CPU).
    """
    return most_of(roundoff(low))


def most_of(u: float) -> float:
    """``most_of_float32`` of the format whose unit roundoff is ``u``."""
    return math.sqrt(FP32.u * u)


def certain(terms: int) -> float:
    """The error that no float32 sum of ``terms`` numbers exceeds, in any order."""
    return terms * FP32.u


def probable(terms: int) -> float:
    """The error that a float32 sum of ``terms`` numbers in a row does not exceed, where no two of them are the same."""
    return math.sqrt(terms) * FP32.u


#: By how much numbers are changed: far more than a rounding, and no sign or zero changes.
SPREAD = 0.25


def other_numbers(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """``tensor`` with each number multiplied by one of its own, of 1 +- SPREAD; torch's own generator is left alone."""
    factors = 1 + SPREAD * (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu") - 1)
    made = torch.empty_like(tensor)
    made.copy_(tensor.detach().to("cpu") * factors)
    return made
