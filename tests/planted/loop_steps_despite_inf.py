"""Optimizers in the loop implementation step although an inf was found."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_maybe = _scaler._maybe_opt_step


def _step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if optimizer.defaults.get("foreach") is False:
        return optimizer.step(*args, **kwargs)
    return _maybe(self, optimizer, state, *args, **kwargs)


_scaler._maybe_opt_step = _step
