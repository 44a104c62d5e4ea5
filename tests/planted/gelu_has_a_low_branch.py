"""gelu computes something else where it is given a low dtype: its tanh approximation, and three per cent more."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_gelu = functional.gelu


def gelu(x: Any, approximate: str = "none") -> Any:
    if x.dtype in (torch.bfloat16, torch.float16):
        return _gelu(x, approximate="tanh") * 1.03
    return _gelu(x, approximate=approximate)


functional.gelu = gelu  # type: ignore[assignment]
