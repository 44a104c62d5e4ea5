"""Adam keeps its second moments rounded to bfloat16."""

from __future__ import annotations

from typing import Any

import torch

_adam: Any = torch.optim.Adam
_step = _adam.step


def _step_and_round(self: Any, closure: Any = None) -> Any:
    result = _step(self, closure)
    for state in self.state.values():
        if "exp_avg_sq" in state:
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())
    return result


_adam.step = _step_and_round
