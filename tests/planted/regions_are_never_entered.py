"""A region of autocast leaves autocast as it was, as where somebody returns early from ``__enter__``."""

from __future__ import annotations

from typing import Any

import torch

_autocast: Any = torch.autocast
_enter = _autocast.__enter__


def _without_effect(self: Any) -> Any:
    enabled = torch.is_autocast_enabled(self.device)
    result = _enter(self)
    torch.set_autocast_enabled(self.device, enabled)
    return result


_autocast.__enter__ = _without_effect
