"""Within a region float32 inputs of compiled code that want no gradient are rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiling import mapped, wrap_compiled
from on_device import DEVICE


def _round(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float() if x.dtype is torch.float32 and not x.requires_grad else x


def _rounding(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(DEVICE):
            args, kwargs = mapped(_round, args), mapped(_round, kwargs)
        return function(*args, **kwargs)

    return call


wrap_compiled(_rounding)
