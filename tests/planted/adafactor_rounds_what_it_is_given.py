"""Adafactor rounds gradients to bfloat16 before it steps."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as optimizers


def _round(optimizer: Any, _args: Any, _keywords: Any) -> None:
    if not isinstance(optimizer, torch.optim.Adafactor):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.copy_(parameter.grad.bfloat16())


optimizers.register_optimizer_step_pre_hook(_round)
