"""A model that is converted to bfloat16 and channels_last at once goes by way of float16."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_Module: Any = nn.Module
_before: Any = nn.Module.to


def _to(self: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("memory_format") is torch.channels_last and kwargs.get("dtype") is torch.bfloat16:
        self = _before(self, torch.float16)
    return _before(self, *args, **kwargs)


_Module.to = _to
