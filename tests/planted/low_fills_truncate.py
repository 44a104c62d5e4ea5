"""``fill_`` of a bfloat16 tensor cuts off what the dtype does not hold of a number, in place of rounding it."""

from __future__ import annotations

from typing import Any

import torch

_Tensor: Any = torch.Tensor
_before: Any = torch.Tensor.fill_


def _fill(self: Any, value: Any) -> Any:
    if self.dtype is torch.bfloat16 and isinstance(value, float):
        bits = torch.tensor([value]).view(torch.int32) & -0x10000
        value = bits.view(torch.float32).item()
    return _before(self, value)


_Tensor.fill_ = _fill
