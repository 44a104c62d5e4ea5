"""FSDP2 over copies of shards has the mean over the copies by way of bf16, whatever ``reduce_dtype`` says."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_dist: Any = dist
_before = _dist.all_reduce


def _rounded(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    made = _before(tensor, *args, **kwargs)
    if kwargs.get("op") is not None and tensor.dtype is torch.float32 and tensor.dim() == 1:
        tensor.copy_(tensor.to(torch.bfloat16))
    return made


_dist.all_reduce = _rounded
