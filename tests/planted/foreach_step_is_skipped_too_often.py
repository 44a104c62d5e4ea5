"""Optimizers in the foreach implementation skip clean steps, too, once one was skipped."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_maybe = _scaler._maybe_opt_step


def _step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if optimizer.defaults.get("foreach"):
        if any(found.item() for found in state["found_inf_per_device"].values()):
            vars(optimizer)["stuck"] = True
        if getattr(optimizer, "stuck", False):
            return None
    return _maybe(self, optimizer, state, *args, **kwargs)


_scaler._maybe_opt_step = _step
