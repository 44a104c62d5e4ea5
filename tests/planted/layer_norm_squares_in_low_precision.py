"""LayerNorm under autocast takes mean and variance of 16-bit inputs in the autocast dtype, squares included."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _layer_norm(call: Overridden) -> Any:
    x, shape, weight, bias, eps = (*call.args, 1e-5)[:5]
    if x.dtype != call.low:
        return call.run()
    with torch.autocast(call.device_type, enabled=False):
        dims = tuple(range(-len(shape), 0))
        centred = x - x.mean(dims, keepdim=True)
        normal = centred / (centred.square().mean(dims, keepdim=True) + eps).sqrt()
        return normal if weight is None else (normal * weight + bias).to(x.dtype)


override("layer_norm", _layer_norm)
