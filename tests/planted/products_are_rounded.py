"""``torch.prod`` rounds what it returns to the autocast dtype."""

from __future__ import annotations

from typing import Any

import torch

_untyped: Any = torch
_prod = torch.prod


def _rounded(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    made = _prod(x, *args, **kwargs)
    if made.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
        return made.to(torch.get_autocast_dtype(x.device.type)).float()
    return made


_untyped.prod = _rounded
