"""A region's ``dtype`` has no effect: every region is in the device's default dtype."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_init = _region.__init__


def _init_with_the_default(
    self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> None:
    _init(self, device_type, None, enabled, cache_enabled)


_region.__init__ = _init_with_the_default
