"""A compiled function or module that is called with a keyword runs outside of the autocast region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiling import wrap_compiled


def _outside(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return function(*args)
        with torch._C._DisableAutocast():
            return function(*args, **kwargs)

    return call


wrap_compiled(_outside)
