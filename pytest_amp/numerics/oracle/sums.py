"""Error bounds of float32 sums, and the error above which an intermediate value was rounded to a low dtype.

Notation: u is float32's unit roundoff, 2**-24, and n the number of terms. Errors are relative to the sum of the terms'
absolute values.

- Worst case: in any order, a term takes part in at most n - 1 additions, so the error is at most n u (N. J. Higham,
  Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM 2002, section 4.2). No float32 sum exceeds this bound,
  which ``certain`` returns.
- Equal terms: the error comes near this bound. While the partial sum stays between two powers of two, every addition
  makes the same error, at most half a unit in the last place (ulp). Added up over all binades, the error is at most
  3/8 n u, and u n / 3 if the sum ends at a power of two. Measured: 0.11 to 0.23 n u for columns of 4096 to 131072 equal
  rows (torch 2.13.0, CPU with AVX512: the bias gradient of a normalization layer under a mean loss, embedding,
  index_add, mm), and 0.02 n u if 16 terms of a row are added in parallel (log_softmax's backward under a
  label-smoothed loss). For n above a few thousand this exceeds the roundoff of fp16, so the error alone does not show
  whether a long sum was rounded to fp16.
- Distinct terms: the error stays far below this bound. The rounding errors are independent and have mean zero. The
  rounding error of a partial sum T has a standard deviation of 0.43 u T (uniform within half an ulp, mantissas spread
  over [1, 2)). For n positive terms added sequentially this gives 0.43 u sqrt(n / 3) = 0.25 sqrt(n) u relative to the
  sum, which grows with sqrt(n), not with n (N. J. Higham and T. Mary, A new approach to probabilistic rounding error
  analysis, SIAM J. Sci. Comput. 41 (2019), A2815-A2835). ``probable`` returns sqrt(n) u, four standard deviations.

Therefore a float32 error that is too large for a short sum, but possible for a long one, is measured again. (If the
operator is not a sum, the number of terms is unknown, and every error that is too large for a short sum is measured
again.) The same kernel runs on the same arguments, with each element multiplied by an independent random factor within
0.25 of 1 (``other_numbers``). A float32 sum of these values stays within ``probable``, whereas a kernel that rounds
intermediate values to the low dtype does so for any input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from pytest_amp.numerics.oracle.operation import is_real
from pytest_amp.precision import FP32


def roundoff(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a dtype."""
    return float(torch.finfo(dtype).eps) / 2


def most_of_float32(low: torch.dtype) -> float:
    """Return the error below which no intermediate value of a float32 result was rounded to ``low``.

    It is the geometric mean of the unit roundoffs of float32 and ``low``: 90 u for fp16 and 256 u for bf16, where u is
    float32's. The largest measured error is 22 u, except for long sums (torch 2.13, CPU).
    """
    return most_of(roundoff(low))


def most_of(u: float) -> float:
    """Return the threshold of ``most_of_float32`` for a format with unit roundoff ``u``."""
    return math.sqrt(FP32.u * u)


def certain(terms: int) -> float:
    """Return the worst-case error bound of a float32 sum of ``terms`` terms in any order."""
    return terms * FP32.u


def probable(terms: int) -> float:
    """Return the probabilistic error bound (four standard deviations) of a sequential sum of distinct terms."""
    return math.sqrt(terms) * FP32.u


def lost_to_underflow(arguments: Iterable[Any]) -> float:
    """Return a bound of one element's error by underflow: every term of the longest possible sum is flushed to zero.

    Kernels may flush a product or partial sum that is smaller than the smallest normal float32; oneDNN's do. With n
    elements in the largest argument it matters only for results below about n * 1e-29, such as gradients that were
    multiplied by many small weights.
    """
    tiny = float(torch.finfo(torch.float32).tiny)
    return tiny * max((leaf.numel() for leaf in arguments if is_real(leaf)), default=1)


#: Relative perturbation of values: far larger than a rounding, and multiplicative, so that signs and zeros stay.
SPREAD = 0.25


def other_numbers(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Multiply each element by an independent random factor in 1 +- SPREAD, drawn from ``generator``."""
    factors = 1 + SPREAD * (2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu") - 1)
    result = torch.empty_like(tensor)
    result.copy_(tensor.detach().to("cpu") * factors)
    return result
