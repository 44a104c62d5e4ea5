"""DDP gives the first rank's buffers to the others in bf16: running statistics lose their bits in each forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

_parallel: Any = DistributedDataParallel
_synchronise = _parallel._sync_buffers


def _by_way_of_bf16(self: Any) -> None:
    _synchronise(self)
    for buffer in self.module.buffers():
        if buffer.dtype is torch.float32:
            buffer.copy_(buffer.bfloat16())


_parallel._sync_buffers = _by_way_of_bf16
