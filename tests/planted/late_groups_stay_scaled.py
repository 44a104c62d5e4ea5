"""``unscale_`` knows the parameter groups that an optimizer had when it was unscaled first, and no later ones."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_
_known: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()


def _unscale_grads(self: Any, optimizer: torch.optim.Optimizer, *arguments: Any) -> Any:
    groups = optimizer.param_groups
    optimizer.param_groups = groups[: _known.setdefault(optimizer, len(groups))]
    try:
        return _unscale(self, optimizer, *arguments)
    finally:
        optimizer.param_groups = groups


_scaler._unscale_grads_ = _unscale_grads
