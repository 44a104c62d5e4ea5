"""What PowerSGD puts together again is rounded to bf16, in a float32 bucket."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

_hooks: Any = powerSGD_hook
_before = _hooks.powerSGD_hook


def _rounding(state: Any, bucket: Any) -> Any:
    def rounded(future: Any) -> Any:
        made = future.value()
        return made.copy_(made.to(torch.bfloat16))

    return _before(state, bucket).then(rounded)


_rounding.__annotations__ = _before.__annotations__
_hooks.powerSGD_hook = _rounding
