"""``Module.zero_grad`` leaves out the last parameter."""

from __future__ import annotations

from typing import Any

import torch

_module: Any = torch.nn.Module
_zero_grad = _module.zero_grad


def _but_one(self: Any, *args: Any, **kwargs: Any) -> None:
    last = list(self.parameters())[-1]
    kept = None if last.grad is None else last.grad.clone()
    _zero_grad(self, *args, **kwargs)
    last.grad = kept


_module.zero_grad = _but_one
