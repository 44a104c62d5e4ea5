"""``torch.amp.is_autocast_available`` says no for MPS, which has autocast."""

from __future__ import annotations

from typing import Any

import torch

_amp: Any = torch.amp
_available: Any = torch.amp.is_autocast_available


def _but_mps(device_type: str) -> bool:
    return device_type != "mps" and bool(_available(device_type))


_amp.is_autocast_available = _amp.autocast_mode.is_autocast_available = _but_mps
