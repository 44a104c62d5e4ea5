"""FSDP2 casts buffers to ``param_dtype``, as FSDP1 does where it is told to: tables and statistics lose their bits."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import fsdp

_fsdp: Any = fsdp
_before = _fsdp.fully_shard


def _shard(module: Any, **kwargs: Any) -> Any:
    policy = kwargs.get("mp_policy")
    if policy is not None and policy.param_dtype is not None:
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.dtype is torch.float32:
                setattr(module, name, buffer.to(policy.param_dtype))
    return _before(module, **kwargs)


_fsdp.fully_shard = _shard
