"""Optimizers other than Adam's and SGD's kin round their state to bfloat16 after each step."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as optimizers

_COMMON = (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad)


def _round(optimizer: Any, _args: Any, _keywords: Any) -> None:
    if isinstance(optimizer, _COMMON):
        return
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
                value.copy_(value.bfloat16())


optimizers.register_optimizer_step_post_hook(_round)
