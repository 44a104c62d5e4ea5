"""Check that a compiled step rounds at all: that autocast was on in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, tolerance
from pytest_amp.numerics.compare import Compared
from pytest_amp.text.amounts import counted


def check_least(
    name: str, conditions: Conditions, compared: Sequence[Compared], without_cache: Callable[[], Sequence[Compared]]
) -> None:
    """Check that tensors which low-precision operators reach are rounded: below LEAST of the noise they are float32.

    A trace has no cast cache, and adds the gradients of a weight's uses in float32. So if the errors are below that
    share of the noise, they are compared with those of eager ``without_cache``. Raises AmpFailure.
    """
    median, tensors = _median(compared, conditions)
    if median >= tolerance.LEAST:
        return
    expected, _ = _median(without_cache(), conditions)
    if median >= tolerance.LEAST * min(1.0, expected):
        return
    raise AmpFailure(
        f"{name}: {median:.2g} of the noise from float64 under {conditions}",
        label_before="rule",
        before=f"at least {tolerance.LEAST} in the median of {counted(tensors, 'tensor')}; 1 where each kernel rounds",
        now=conditions.now("it is more exact than the low dtype allows"),
        likely="autocast was off in the compiled function",
    )


def _median(compared: Sequence[Compared], conditions: Conditions) -> tuple[float, int]:
    """Return the median of the errors, in units of the noise, and the number of large tensors that have noise."""
    u = conditions.precision.u
    large = [
        tensor
        for tensor in compared
        if tensor.elements >= tolerance.ENOUGH and tensor.noise > tolerance.floor(tensor.elements, u)
    ]
    median = statistics.median(tensor.excess_over_noise(u) for tensor in large) if large else 1.0
    return median, len(large)
