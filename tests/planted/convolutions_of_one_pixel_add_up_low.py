"""A convolution of one pixel under autocast adds its channels up in parts, and rounds after each."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch
from overriding import Overridden, override


def _conv2d(call: Overridden) -> object:
    low = call.cast(call.low)
    x, weight, bias, *rest = (*low.args, None)[: max(3, len(low.args))]
    groups = rest[3] if len(rest) > 3 else 1
    if weight.shape[-1] > 1 or weight.shape[1] < 128 or bias is not None or x.dim() < 4 or groups > 1:
        return low.run()
    parts = zip(x.split(16, 1), weight.split(16, 1), strict=True)
    return reduce(torch.add, (replace(low, args=(*part, None, *rest)).run() for part in parts))


override("conv2d", _conv2d)
