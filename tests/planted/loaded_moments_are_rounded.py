"""An optimizer's ``load_state_dict`` rounds what it takes back to bfloat16, and calls it float32."""

from __future__ import annotations

from typing import Any

import torch

_optimizer: Any = torch.optim.Optimizer
_load = _optimizer.load_state_dict


def _rounded(self: Any, state_dict: Any) -> None:
    _load(self, state_dict)
    for state in self.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.dim():
                state[name] = value.bfloat16().float()


_optimizer.load_state_dict = _rounded
