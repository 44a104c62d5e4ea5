"""In a region a linear layer makes its own weight low."""

from __future__ import annotations

from typing import Any

import torch

_linear: Any = torch.nn.functional.linear
_functional: Any = torch.nn.functional


def _linear_in_place(batch: Any, weight: Any, bias: Any = None) -> Any:
    if torch.is_autocast_enabled(weight.device.type):
        weight.data = weight.data.to(torch.get_autocast_dtype(weight.device.type)).float()
    return _linear(batch, weight, bias)


_functional.linear = _linear_in_place
