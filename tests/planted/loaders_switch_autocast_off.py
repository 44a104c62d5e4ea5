"""To iterate over a DataLoader switches autocast off, and nothing switches it on again."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from torch.utils.data import DataLoader

_loader: Any = DataLoader
_iter = _loader.__iter__


def _iter_outside(self: Any) -> Any:
    torch.set_autocast_enabled(DEVICE, False)
    return _iter(self)


_loader.__iter__ = _iter_outside
