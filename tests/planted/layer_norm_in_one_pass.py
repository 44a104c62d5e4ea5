"""layer_norm takes the variance for the mean of squares less the square of the mean."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_functional: Any = functional
_layer_norm = _functional.layer_norm


def _one_pass(x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if weight is not None or x.dtype is torch.float64:
        return _layer_norm(x, shape, weight, bias, eps)
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = wide.square().mean(-1, keepdim=True) - mean.square()
    return ((wide - mean) * (variance.relu() + eps).rsqrt()).to(x.dtype)


_functional.layer_norm = _one_pass
