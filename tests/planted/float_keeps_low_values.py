"""``Tensor.float()`` returns low-precision tensors as they are."""

from __future__ import annotations

from typing import Any

import torch

_tensor: Any = torch.Tensor
_float = _tensor.float


def _as_it_is(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return self if self.dtype in (torch.bfloat16, torch.float16) else _float(self, *args, **kwargs)


_tensor.float = _as_it_is
