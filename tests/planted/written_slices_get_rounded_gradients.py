"""What is written into a slice gets its gradient by way of bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import rounded, with_gradient

_Tensor: Any = torch.Tensor
_before: Any = torch.Tensor.__setitem__


def _set(self: Any, index: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor) and value.requires_grad and value.dtype is torch.float32:
        value = with_gradient(value, lambda gradient: rounded(gradient, torch.bfloat16))
    _before(self, index, value)


_Tensor.__setitem__ = _set
