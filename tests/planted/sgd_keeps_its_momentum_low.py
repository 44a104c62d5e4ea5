"""SGD keeps its momentum in bfloat16 between steps, and computes with it in float32."""

from __future__ import annotations

from typing import Any

import torch

_sgd: Any = torch.optim.SGD
_step = _sgd.step


def _cast(optimizer: Any, dtype: torch.dtype) -> None:
    for state in optimizer.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"] = state["momentum_buffer"].to(dtype)


def _step_in_float32(self: Any, closure: Any = None) -> Any:
    _cast(self, torch.float32)
    result = _step(self, closure)
    _cast(self, torch.bfloat16)
    return result


_sgd.step = _step_in_float32
