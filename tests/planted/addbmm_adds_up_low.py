"""``addbmm`` over long rows is added up in parts under autocast, and rounded after each."""

from __future__ import annotations

from dataclasses import replace

import torch
from overriding import Overridden, override


def _addbmm(call: Overridden) -> object:
    low = call.cast(call.low)
    start, first, second = low.args
    if first.shape[-1] < 256 or first.dtype is torch.float64 or low.kwargs:
        return low.run()
    for a, b in zip(first.split(16, -1), second.split(16, 1), strict=True):
        start = replace(low, args=(start, a, b)).run()
    return start


override("addbmm", _addbmm)
