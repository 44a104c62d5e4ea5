"""Optimizers load large tensors of their state rounded to bfloat16, small ones as they are."""

from __future__ import annotations

from typing import Any

import torch

_optimizer: Any = torch.optim.Optimizer
_load = _optimizer.load_state_dict


def _load_low(self: Any, state_dict: dict[str, Any]) -> None:
    _load(self, state_dict)
    for state in self.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.numel() > 10_000:
                state[key] = value.bfloat16().to(value.dtype)


_optimizer.load_state_dict = _load_low
