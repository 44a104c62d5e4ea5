"""A compiled function runs in the region in which it was called first, as if its code had no guard on autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiling import wrap_compiled
from on_device import DEVICE


def _first(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    states: list[tuple[bool, torch.dtype]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        states.append((torch.is_autocast_enabled(DEVICE), torch.get_autocast_dtype(DEVICE)))
        enabled, dtype = states[0]
        with torch.autocast(DEVICE, dtype, enabled=enabled):
            return function(*args, **kwargs)

    return call


wrap_compiled(_first)
