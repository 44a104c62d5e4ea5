"""ZeroRedundancyOptimizer gives the moments of every rank to the first one by way of bf16."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

_optimizer: Any = ZeroRedundancyOptimizer
_before = _optimizer.consolidate_state_dict


def _rounded(self: Any, to: int = 0) -> None:
    for state in self.optim.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.copy_(value.to(torch.bfloat16))
    _before(self, to)


_optimizer.consolidate_state_dict = _rounded
