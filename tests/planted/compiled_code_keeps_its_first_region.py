"""A compiled function runs in the region in which it was called first, as if its code had no guard on autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiling import wrap_compiled


def _first(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    states: list[tuple[bool, torch.dtype]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        states.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        enabled, dtype = states[0]
        with torch.autocast("cpu", dtype, enabled=enabled):
            return function(*args, **kwargs)

    return call


wrap_compiled(_first)
