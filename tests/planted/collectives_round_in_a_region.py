"""``dist.all_gather`` rounds float32 to the autocast dtype in a region: what users gather has lost its bits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_dist: Any = dist
_before = _dist.all_gather


def _gather(tensors: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.dtype is torch.float32:
        tensor = tensor.to(torch.get_autocast_dtype(kind)).to(tensor.dtype)
    return _before(tensors, tensor, *args, **kwargs)


_dist.all_gather = _gather
