"""Under autocast GELU computes in float32 and rounds its result: right, and what is kept is twice as much."""

from __future__ import annotations

import torch
from overriding import Overridden, override
from torch import Tensor


def _wide(call: Overridden) -> Tensor:
    result: Tensor = call.cast(torch.float32).run()
    return result.to(call.low)


override("gelu", _wide)
