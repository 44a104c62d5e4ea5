"""softmax under autocast is made of operators of the low dtype, each of which rounds."""

from __future__ import annotations

from typing import Any

from overriding import Overridden, override


def _softmax(call: Overridden) -> Any:
    x, dim = call.cast(call.low).args[:2]
    weights = (x - x.amax(dim, keepdim=True)).exp()
    return weights / weights.sum(dim, keepdim=True)


override("softmax.int", _softmax)
