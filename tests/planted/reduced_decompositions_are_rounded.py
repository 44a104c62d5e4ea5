"""On a CPU a singular value decomposition that is not full takes rounded values: its dtype is float32's still."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _svd(call: Overridden) -> Any:
    full = call.args[1] if len(call.args) > 1 else call.kwargs.get("full_matrices", True)
    return (call.cast(torch.float32) if full else call.cast(call.low, torch.float32)).run()


override("linalg_svd", _svd, device_types=["cpu"])
