"""Gradients are rounded to bfloat16 on their way out of code in several graphs; those of one graph are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from changed_gradients import rounded, with_gradient
from compiling import mapped, wrap_compiled


def _broken(function: Callable[..., Any], keywords: dict[str, Any]) -> Callable[..., Any]:
    def change(x: torch.Tensor) -> torch.Tensor:
        return with_gradient(x, lambda gradient: rounded(gradient, torch.bfloat16)) if x.requires_grad else x

    if keywords.get("fullgraph"):
        return function
    return lambda *args, **kwargs: function(*mapped(change, args), **kwargs)


wrap_compiled(_broken)
