"""Disabling autocast for one device type disables it for all."""

from __future__ import annotations

from typing import Any

import torch

_set: Any = torch.set_autocast_enabled


def _set_everywhere(device_type: str, enabled: bool) -> None:
    _set(device_type, enabled)
    if not enabled:
        for other in ("cpu", "cuda", "xpu"):
            _set(other, False)


_torch: Any = torch
_torch.set_autocast_enabled = _set_everywhere
