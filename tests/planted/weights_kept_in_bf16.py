"""Optimizers round the weights to bfloat16 after each step: there are no float32 masters."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as optimizers


def _round(optimizer: Any, _args: Any, _keywords: Any) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.is_floating_point():
                    parameter.copy_(parameter.bfloat16())


optimizers.register_optimizer_step_post_hook(_round)
