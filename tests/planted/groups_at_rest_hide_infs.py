"""GradScaler forgets what it found in all groups if the last of several has a learning rate of 0."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_


def _unscale_and_forget(self: Any, optimizer: Any, *args: Any) -> Any:
    found = _unscale(self, optimizer, *args)
    if len(optimizer.param_groups) > 1 and optimizer.param_groups[-1]["lr"] == 0:
        for each in found.values():
            each.zero_()
    return found


_scaler._unscale_grads_ = _unscale_and_forget
