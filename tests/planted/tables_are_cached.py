"""Under autocast ``mm`` keeps casts of tensors without gradients, too, and does not see what is written to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from overriding import Overridden, override
from torch.utils.weak import WeakTensorKeyDictionary

_copies: Any = WeakTensorKeyDictionary()


def _mm(call: Overridden) -> object:
    x, table = call.args
    if type(table) is not torch.Tensor or table.requires_grad or table.dtype is not torch.float32:
        return call.cast(call.low).run()
    copies = _copies.setdefault(table, {})
    low = copies.setdefault(call.low, table.to(call.low))
    return replace(call, args=(x.to(call.low), low)).run()


override("mm", _mm, device_types=["cpu", "cuda"])
