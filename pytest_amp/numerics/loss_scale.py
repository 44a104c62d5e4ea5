"""Search for the loss scale of a step: the largest with which fp16 gradients stay finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pytest_amp.precision import FP16, Precision

_Result = TypeVar("_Result")

#: GradScaler's first scale (torch/amp/grad_scaler.py), with which fp16 gradients do not underflow.
FIRST = 2.0**16
_FACTOR = 4.0


def at_largest_scale(
    run: Callable[[float], _Result],
    suffices: Callable[[_Result], bool],
    precision: Precision,
    *,
    first: float = FIRST,
    least: float = 1.0,
) -> tuple[float, _Result]:
    """Return the first loss scale for which the result of ``run`` suffices, and that result.

    In fp16 the scales are ``first``, and then a quarter each time, down to ``least``; in any other precision 1 alone.
    If no result suffices, the last scale and its result are returned.
    """
    scale, last = (first, least) if precision.name == FP16.name else (1.0, 1.0)
    result = run(scale)
    while scale > last and not suffices(result):
        scale /= _FACTOR
        result = run(scale)
    return scale, result
