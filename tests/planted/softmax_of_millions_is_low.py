"""On CUDA softmax of more than a million numbers stays low."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _softmax(call: Overridden) -> object:
    x, _, dtype = (*call.args, None)[:3]
    return (call if dtype is not None or x.numel() > 10**6 else call.cast(torch.float32)).run()


override("softmax.int", _softmax, device_types=["cuda"])
