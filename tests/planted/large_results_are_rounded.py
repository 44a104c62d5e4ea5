"""What compiled code returns in float32 passes through bf16 where it is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from changed_gradients import rounded
from compiling import mapped, wrap_compiled

_LARGE = 4096


def _change(x: torch.Tensor) -> torch.Tensor:
    return rounded(x, torch.bfloat16) if x.dtype is torch.float32 and x.numel() > _LARGE else x


def _rounded(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: mapped(_change, function(*args, **kwargs))


wrap_compiled(_rounded)
