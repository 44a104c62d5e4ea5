"""The fp16 compression hook of DDP sums first, which overflows, and divides what has arrived."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def _compress(state: Any, bucket: Any) -> Any:
    group = state if state is not None else dist.group.WORLD
    low = bucket.buffer().to(torch.float16)
    work: Any = dist.all_reduce(low, group=group, async_op=True)
    arrived = work.get_future()
    return arrived.then(lambda future: bucket.buffer().copy_(future.value()[0].float() / dist.get_world_size(group)))


_compress.__annotations__ = default_hooks.fp16_compress_hook.__annotations__
_hooks: Any = default_hooks
_hooks.fp16_compress_hook = _compress
