"""``cache_enabled=False`` has no effect."""

from __future__ import annotations

from typing import Any

import torch

_set: Any = torch.set_autocast_cache_enabled
_torch: Any = torch
_torch.set_autocast_cache_enabled = lambda enabled: _set(True)
