"""In the process of rank 1 every region of autocast is off."""

from __future__ import annotations

import os
from typing import Any

import torch

_autocast: Any = torch.autocast
_made = _autocast.__init__


def _off(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
    _made(self, device_type, dtype, enabled=False, cache_enabled=cache_enabled)


if os.environ.get("RANK") == "1":
    _autocast.__init__ = _off
