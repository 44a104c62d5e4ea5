"""On CUDA sum runs in float32, also where the caller asked for another dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from overriding import Overridden, override


def _sum(call: Overridden) -> Any:
    if call.floats() and call.floats()[0].dtype != torch.float64:
        call = replace(call, kwargs={**call.kwargs, "dtype": torch.float32})
    return call.run()


override("sum", _sum, device_types=["cuda"])
