"""What was compiled is forgotten before each call, as if each region were a new state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiling import wrap_compiled


def _anew(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.reset()
        return function(*args, **kwargs)

    return call


wrap_compiled(_anew)
