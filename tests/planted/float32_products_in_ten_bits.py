"""float32 products round their inputs to ten bits of mantissa, as TF32 does, whatever the switches say."""

from __future__ import annotations

from typing import Any

import torch

_before: Any = torch.Tensor.__matmul__


def _matmul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if self.dtype is torch.float32 and other.dtype is torch.float32:
        self, other = (x.view(torch.int32).add(0x1000).bitwise_and(-0x2000).view(torch.float32) for x in (self, other))
    return _before(self, other)  # type: ignore[no-any-return]


torch.Tensor.__matmul__ = _matmul  # type: ignore[method-assign,assignment]
