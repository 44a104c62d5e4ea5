"""Dropout of everything gives NaN for low tensors: zero over zero."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_functional: Any = functional
_before = functional.dropout


def _dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    result = _before(x, p, training, inplace)
    return result / (1 - p) if p == 1 and x.dtype in (torch.bfloat16, torch.float16) else result


_functional.dropout = _dropout
