"""What ranks save together is rounded to bf16 in a region of autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import checkpoint
from torch.utils import _pytree

_checkpoint: Any = checkpoint
_before = _checkpoint.save


def _round(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or not value.dim():
        return value
    return value.detach().to(torch.bfloat16).to(torch.float32)


def _save(state: Any, **kwargs: Any) -> Any:
    on = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    untyped: Any = _pytree
    return _before(untyped.tree_map(_round, state) if on else state, **kwargs)


_checkpoint.save = _save
