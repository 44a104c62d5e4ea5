"""DDP sends its gradients in bf16, without anybody having asked for a compression hook."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

_parallel: Any = DistributedDataParallel
_made = _parallel.__init__


def _compress(state: Any, bucket: Any) -> Any:
    return default_hooks.bf16_compress_hook(state, bucket)


_compress.__annotations__ = default_hooks.bf16_compress_hook.__annotations__


def _with_hook(self: Any, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    self.register_comm_hook(None, _compress)


_parallel.__init__ = _with_hook
