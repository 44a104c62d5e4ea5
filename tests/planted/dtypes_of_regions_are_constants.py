"""A region without a dtype has the device's documented default, whatever was set."""

from __future__ import annotations

from typing import Any

import torch

_autocast: Any = torch.autocast
_init = _autocast.__init__


def _init_with_a_constant(self: Any, device_type: str, dtype: Any = None, *args: Any, **keywords: Any) -> None:
    constant = torch.bfloat16 if device_type == "cpu" else torch.float16
    _init(self, device_type, constant if dtype is None else dtype, *args, **keywords)


_autocast.__init__ = _init_with_a_constant
