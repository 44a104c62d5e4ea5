"""A compiled function runs outside of the autocast region in which it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiling import wrap_compiled
from overriding import DEVICE_TYPES


def _outside(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        on = [name for name in DEVICE_TYPES if torch.is_autocast_enabled(name)]
        for name in on:
            torch.set_autocast_enabled(name, False)
        try:
            return function(*args, **kwargs)
        finally:
            for name in on:
                torch.set_autocast_enabled(name, True)

    return call


wrap_compiled(_outside)
