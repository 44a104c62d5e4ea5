"""A region that decorates a function has its cache on, whatever it was told."""

from __future__ import annotations

from typing import Any

import torch

_mode: Any = torch.amp.autocast_mode
_decorator = _mode.autocast_decorator


def _decorated(region: Any, function: Any) -> Any:
    region._cache_enabled = True
    return _decorator(region, function)


_mode.autocast_decorator = _decorated
