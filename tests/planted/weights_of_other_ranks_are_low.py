"""ZeroRedundancyOptimizer sends the weights that a rank has updated by way of bf16."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

_optimizer: Any = ZeroRedundancyOptimizer
_before = _optimizer._sync_params


def _rounded(self: Any) -> Any:
    with torch.no_grad():
        for group in self.optim.param_groups:
            for parameter in group["params"]:
                parameter.copy_(parameter.to(torch.bfloat16))
    return _before(self)


_optimizer._sync_params = _rounded
