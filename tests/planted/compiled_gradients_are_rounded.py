"""Gradients that leave a compiled backward pass are rounded to bfloat16, as if it ran in a region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from changed_gradients import rounded, with_gradient
from compiling import mapped, wrap_compiled


def _rounded(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    def change(x: torch.Tensor) -> torch.Tensor:
        return with_gradient(x, lambda gradient: rounded(gradient, torch.bfloat16)) if x.requires_grad else x

    return lambda *args, **kwargs: function(*mapped(change, args), **kwargs)


wrap_compiled(_rounded)
