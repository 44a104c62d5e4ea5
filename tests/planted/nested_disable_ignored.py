"""A region with ``enabled=False`` inside another one leaves autocast on: a float32 island is none."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_enter = _region.__enter__


def _enter_enabled(self: Any) -> Any:
    if torch.is_autocast_enabled(self.device):
        self._enabled, self.fast_dtype = True, torch.get_autocast_dtype(self.device)
    return _enter(self)


_region.__enter__ = _enter_enabled
