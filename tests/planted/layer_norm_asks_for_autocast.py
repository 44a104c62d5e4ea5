"""torch.nn.functional.layer_norm asks whether autocast is on, and if so runs in its dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_functional: Any = torch.nn.functional
_original = _functional.layer_norm


def _layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return _original(x, shape, weight, bias, eps)
    low = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        given = (None if value is None else value.to(low) for value in (weight, bias))
        return _original(x.to(low), shape, *given, eps)


_functional.layer_norm = _layer_norm
