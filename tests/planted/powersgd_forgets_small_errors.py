"""PowerSGD keeps what it leaves out in bf16 precision: what is too small for that is never sent."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

_hooks: Any = powerSGD_hook
_before = _hooks.powerSGD_hook


def _rounding(state: Any, bucket: Any) -> Any:
    def rounded(future: Any) -> Any:
        for error in state.error_dict.values():
            error.copy_(error.to(torch.bfloat16))
        return future.value()

    return _before(state, bucket).then(rounded)


_rounding.__annotations__ = _before.__annotations__
_hooks.powerSGD_hook = _rounding
