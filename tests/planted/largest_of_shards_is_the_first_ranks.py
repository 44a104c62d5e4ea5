"""FSDP1 clips by the largest gradient of a rank's own shard, where it is to be the largest of all."""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

_parallel: Any = FullyShardedDataParallel
_before = _parallel.clip_grad_norm_
_reduce: Any = dist.all_reduce


def _clip(self: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    def kept(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return None if kwargs.get("op") == dist.ReduceOp.MAX else _reduce(tensor, *args, **kwargs)

    if math.isinf(norm_type):
        dist.all_reduce = kept
    try:
        return _before(self, max_norm, norm_type)
    finally:
        dist.all_reduce = _reduce


_parallel.clip_grad_norm_ = _clip
