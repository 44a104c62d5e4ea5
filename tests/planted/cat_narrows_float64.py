"""On a CPU ``cat`` under autocast takes float64 for float32 where a low tensor stands beside it."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _cat(call: Overridden) -> Any:
    dtypes = {tensor.dtype for tensor in call.floats()}
    if torch.float64 in dtypes and len(dtypes) > 1:
        return call.cast(torch.float32, every=True).run()
    return call.cast(torch.float32 if torch.float32 in dtypes else call.low).run()


override("cat", _cat, device_types=["cpu"])
