"""On XPU linear casts its arguments by way of float64."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _twice(call: Overridden) -> object:
    return call.cast(torch.float64, call.low).run()


override("linear", _twice, device_types=["xpu"])
