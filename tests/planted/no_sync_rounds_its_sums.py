"""FSDP1 leaves ``no_sync`` with sums of gradients that were rounded to bf16, whatever the parameters' dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

_parallel: Any = FullyShardedDataParallel
_before = _parallel.no_sync


@contextlib.contextmanager
def _rounding(self: Any) -> Iterator[None]:
    with _before(self):
        yield
    for parameter in self.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(torch.bfloat16))


_parallel.no_sync = _rounding
