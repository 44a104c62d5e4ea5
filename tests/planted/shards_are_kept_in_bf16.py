"""FSDP2 casts the weights to bf16 before it splits them: there are no float32 masters."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import fsdp

_fsdp: Any = fsdp
_shard = _fsdp.fully_shard


def _low(module: Any, **kwargs: Any) -> Any:
    return _shard(module.to(torch.bfloat16), **kwargs)


_fsdp.fully_shard = _low
