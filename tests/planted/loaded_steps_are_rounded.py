"""An optimizer's ``load_state_dict`` rounds the count of steps to bfloat16."""

from __future__ import annotations

from typing import Any

import torch

_optimizer: Any = torch.optim.Optimizer
_load = _optimizer.load_state_dict


def _rounded(self: Any, state_dict: Any) -> None:
    _load(self, state_dict)
    for state in self.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].bfloat16().float()


_optimizer.load_state_dict = _rounded
