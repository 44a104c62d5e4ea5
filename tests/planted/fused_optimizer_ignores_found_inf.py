"""The fused optimizers step although the scaler found an inf."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch


def _without_found_inf(kernel: Any) -> Any:
    def step(*args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **{**kwargs, "found_inf": None})

    return step


for _name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"):
    if hasattr(torch, _name):
        setattr(torch, _name, _without_found_inf(getattr(torch, _name)))
