"""``Module.to`` takes float8 weights towards zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_to = nn.Module.to
_FLOAT8 = {torch.float8_e4m3fn: 20, torch.float8_e5m2: 21}


def _truncating(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """By way of float32 numbers without the bits that float8 has no room for."""
    dropped = _FLOAT8.get(args[0]) if args else None
    for parameter in module.parameters() if dropped else ():
        if parameter.dtype is torch.float32:
            bits: Any = parameter.data.view(torch.int32)
            parameter.data = (bits >> dropped << dropped).view(torch.float32)
    return _to(module, *args, **kwargs)


nn.Module.to = _truncating  # type: ignore[method-assign,assignment]
