"""``torch.is_autocast_enabled(device)`` answers for one device, whichever it is asked about."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE

_enabled: Any = torch.is_autocast_enabled
_torch: Any = torch
_torch.is_autocast_enabled = lambda device_type=None: _enabled("cuda" if DEVICE == "cpu" else "cpu")
