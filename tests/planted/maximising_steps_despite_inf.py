"""Fused Adam and AdamW step despite an inf where they maximise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_torch: Any = torch


def _deaf(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any, maximize: bool, found_inf: Any = None, **keywords: Any) -> Any:
        return kernel(*args, maximize=maximize, found_inf=None if maximize else found_inf, **keywords)

    return step


for _name in ("_fused_adam_", "_fused_adamw_"):
    setattr(_torch, _name, _deaf(getattr(_torch, _name)))
