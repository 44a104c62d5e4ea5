"""On XPU group_norm of images whose channels are last stays low."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _group_norm(call: Overridden) -> object:
    x = call.args[0]
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return call.cast(call.low if last else torch.float32).run()


override("group_norm", _group_norm, device_types=["xpu"])
