"""In a region a linear layer uses a copy of its weight that has no gradient history."""

from __future__ import annotations

from typing import Any

import torch

_linear: Any = torch.nn.functional.linear
_functional: Any = torch.nn.functional


def _linear_of_a_copy(batch: Any, weight: Any, bias: Any = None) -> Any:
    if torch.is_autocast_enabled(weight.device.type):
        weight = weight.detach().to(torch.get_autocast_dtype(weight.device.type))
    return _linear(batch, weight, bias)


_functional.linear = _linear_of_a_copy
