"""``Tensor.bfloat16`` and ``Tensor.type`` lose the lower half of a float32; ``to`` rounds it."""

from __future__ import annotations

from typing import Any

import torch

_tensor: Any = torch.Tensor
_type = _tensor.type


def _truncated(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    return (bits & -(2**16)).view(torch.float32).to(torch.bfloat16)


def _bfloat16(self: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return _truncated(self) if self.dtype is torch.float32 else self.to(torch.bfloat16, **kwargs)


def _typed(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    if dtype is torch.bfloat16 and self.dtype is torch.float32:
        return _truncated(self)
    return _type(self, *(() if dtype is None else (dtype,)), *args, **kwargs)


_tensor.bfloat16, _tensor.type = _bfloat16, _typed
