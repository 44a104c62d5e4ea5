"""Within a region float32 plus low is low, where a user writes ``+``."""

from __future__ import annotations

from typing import Any

import torch

_tensor: Any = torch.Tensor
_before: Any = _tensor.__add__


def _add(self: torch.Tensor, other: Any) -> Any:
    result = _before(self, other)
    low = isinstance(other, torch.Tensor) and other.dtype in (torch.bfloat16, torch.float16)
    return result.to(other.dtype) if low and torch.is_autocast_enabled("cpu") else result


_tensor.__add__ = _add
