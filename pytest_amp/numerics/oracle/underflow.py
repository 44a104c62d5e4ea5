"""Errors of products and sums that are too small for float32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pytest_amp.numerics.oracle.operation import is_real

#: The smallest normal float32. Kernels may flush a smaller product or partial sum to zero; oneDNN's do.
_TINY = float(torch.finfo(torch.float32).tiny)


def lost_to_underflow(arguments: Iterable[Any]) -> float:
    """Return a bound of one element's error by underflow: every term of the longest possible sum is flushed to zero.

    With n elements in the largest argument it matters only for results below about n * 1e-29, such as gradients that
    were multiplied by many small weights.
    """
    return _TINY * max((leaf.numel() for leaf in arguments if is_real(leaf)), default=1)
