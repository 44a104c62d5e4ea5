"""A linear layer that is split by its inputs adds its bias on every rank: the sum has it twice."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import RowwiseParallel

_style: Any = RowwiseParallel
_before = _style._apply


def _twice(self: Any, module: Any, device_mesh: Any) -> Any:
    if getattr(module, "bias", None) is not None:
        with torch.no_grad():
            module.bias.mul_(dist.get_world_size())
    return _before(self, module, device_mesh)


_style._apply = _twice
