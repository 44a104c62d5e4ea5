"""``torch.einsum`` computes in float32 where its operands have several dtypes, whatever the region says."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_einsum = _torch.einsum


def _widened(equation: str, *operands: Any) -> Any:
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if len({tensor.dtype for tensor in tensors}) == 1:
        return _einsum(equation, *operands)
    with _torch._C._DisableAutocast():
        return _einsum(equation, *(tensor.float() for tensor in tensors))


_torch.einsum = _widened
