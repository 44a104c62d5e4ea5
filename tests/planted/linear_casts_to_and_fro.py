"""Under autocast a linear layer casts its low arguments to float32 and back once more: right, and slower."""

from __future__ import annotations

import torch
from overriding import Overridden, override
from torch import Tensor


def _twice(call: Overridden) -> Tensor:
    result: Tensor = call.cast(call.low, torch.float32, call.low).run()
    return result


override("linear", _twice)
