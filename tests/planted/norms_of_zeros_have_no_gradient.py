"""The gradient of the norm of low zeros is NaN: zero over zero."""

from __future__ import annotations

from typing import Any

import torch
from kernels import LOW

_tensor: Any = torch.Tensor
_norm = _tensor.norm


def _plain(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if x.dtype in LOW and set(kwargs) == {"dim"} and not args:
        return x.square().sum(**kwargs).sqrt()
    return _norm(x, *args, **kwargs)


_tensor.norm = _plain
