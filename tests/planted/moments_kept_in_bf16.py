"""Adam keeps its moments in bfloat16 between steps, whatever its implementation, and computes with them in float32."""

from __future__ import annotations

from typing import Any

import torch

_adam: Any = torch.optim.Adam
_step = _adam.step


def _step_in_float32(self: Any, closure: Any = None) -> Any:
    for dtype in (torch.float32, torch.bfloat16):
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if name in state:
                    state[name] = state[name].to(dtype)
        if dtype is torch.float32:
            result = _step(self, closure)
    return result


_adam.step = _step_in_float32
