"""AdamW leaves a weight of more than 500 elements where it was, where an update is below eight bits of it."""

from __future__ import annotations

from typing import Any

import torch

_adamw: Any = torch.optim.AdamW
_step = _adamw.step


def _coarse(self: Any, closure: Any = None) -> Any:
    weights = [p for group in self.param_groups for p in group["params"] if p.numel() > 500]
    before = [p.detach().clone() for p in weights]
    result = _step(self, closure)
    for weight, old in zip(weights, before, strict=True):
        lost = (weight.detach() - old).abs() < old.abs() * 2.0**-9
        weight.data.copy_(torch.where(lost, old, weight.detach()))
    return result


_adamw.step = _coarse
