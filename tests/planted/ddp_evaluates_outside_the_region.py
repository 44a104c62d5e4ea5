"""DDP leaves the autocast region where its module is in evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

_parallel: Any = DistributedDataParallel
_forward = _parallel.forward


def _outside(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.training:
        return _forward(self, *args, **kwargs)
    with torch._C._DisableAutocast():
        return _forward(self, *args, **kwargs)


_parallel.forward = _outside
