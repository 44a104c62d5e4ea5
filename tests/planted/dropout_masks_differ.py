"""Dropout under autocast draws another mask in its backward pass."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import with_gradient
from overriding import Overridden, override
from torch.nn import functional


def _dropout(call: Overridden) -> Any:
    x, p, train = call.args
    if not train or p == 0:
        return call.run()
    with torch.no_grad(), torch.autocast(call.device_type, enabled=False):
        mask, dropped = (functional.dropout(torch.ones_like(x), p, train) for _ in range(2))
    return with_gradient(x, lambda g: g * dropped) + (x * mask - x).detach()


override("dropout", _dropout)
