"""Capturable optimizers, fused or not, step although an inf was found."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_check = _scaler._check_inf_per_device
_maybe = _scaler._maybe_opt_step


def _unseen(self: Any, optimizer: Any) -> Any:
    found = _check(self, optimizer)
    if optimizer.defaults.get("capturable"):
        for each in found.values():
            each.zero_()
    return found


def _step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if optimizer.defaults.get("capturable"):
        return optimizer.step(*args, **kwargs)
    return _maybe(self, optimizer, state, *args, **kwargs)


_scaler._check_inf_per_device = _unseen
_scaler._maybe_opt_step = _step
