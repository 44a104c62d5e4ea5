"""A product of two long vectors under autocast is added up in parts, and rounded after each."""

from __future__ import annotations

from functools import reduce

import torch
from overriding import Overridden, override


def _matmul(call: Overridden) -> object:
    x, y = call.cast(call.low).args
    if x.dim() != 1 or y.dim() != 1 or x.numel() < 256 or x.dtype is torch.float64:
        return call.cast(call.low).run()
    parts = [(a.float() * b.float()).sum().to(call.low) for a, b in zip(x.split(16), y.split(16), strict=True)]
    return reduce(torch.add, parts)


override("matmul", _matmul)
