"""A conv2d on a CPU answers contiguously where its weight alone is channels last."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _convolve(call: Overridden) -> Any:
    result = call.cast(call.low).run()
    weight = call.args[1]
    last = weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    return result.contiguous() if last else result


override("conv2d", _convolve, device_types=["cpu"])
