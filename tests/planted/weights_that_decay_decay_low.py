"""Optimizers round float32 gradients to 12 bits where weights decay; float64 stays as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as optimizers


def _round(optimizer: Any, _args: Any, _keywords: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("weight_decay") else ():
            if parameter.dtype is torch.float32 and parameter.grad is not None:
                parameter.grad.view(torch.int32).bitwise_and_(~0xFFF)


optimizers.register_optimizer_step_pre_hook(_round)
