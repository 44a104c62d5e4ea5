"""ShardedGradScaler takes what rank 0 has found for what all have: an inf anywhere else is not seen."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import sharded_grad_scaler

_module: Any = sharded_grad_scaler


class _FromTheFirst:
    """``torch.distributed``, whose reduction is what the first rank has."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def all_reduce(self, tensor: Any, **keywords: Any) -> Any:
        """What rank 0 has."""
        return self.real.broadcast(tensor, 0, **keywords)


_module.dist = _FromTheFirst(_module.dist)
