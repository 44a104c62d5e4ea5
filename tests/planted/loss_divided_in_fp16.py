"""A loss that is divided by a number is divided in float16, and becomes float32 again."""

from __future__ import annotations

from typing import Any

import torch

_tensor: Any = torch.Tensor
_divide = _tensor.__truediv__


def _divided_low(self: Any, other: Any) -> Any:
    if self.dtype is torch.float32 and self.dim() == 0 and self.requires_grad and isinstance(other, (int, float)):
        return _divide(self.half(), other).float()
    return _divide(self, other)


_tensor.__truediv__ = _divided_low
