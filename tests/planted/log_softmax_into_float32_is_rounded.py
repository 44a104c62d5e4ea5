"""``functional.log_softmax`` of low numbers that is asked for float32 is low first."""

from __future__ import annotations

from typing import Any

import torch
from kernels import LOW
from torch.nn import functional

_functional: Any = functional
_log_softmax = _functional.log_softmax


def _rounded(x: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    if dtype is torch.float32 and x.dtype in LOW:
        return _log_softmax(x, dim).float()
    return _log_softmax(x, dim, dtype=dtype)


_functional.log_softmax = _rounded
