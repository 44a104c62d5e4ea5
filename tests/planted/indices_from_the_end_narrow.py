"""On CUDA scatter_add takes the dtype of its first argument where the dimension is counted from the end."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _scatter_add(call: Overridden) -> object:
    wide = any(x.dtype is torch.float32 for x in call.floats())
    first = call.floats()[0].dtype if call.args[1] < 0 else torch.float32 if wide else call.low
    return call.cast(first).run()


override("scatter_add", _scatter_add, device_types=["cuda"])
