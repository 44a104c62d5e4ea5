"""GradScaler finds no inf where gradients are switched off around its step."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_


def _unscale_and_forget(self: Any, *args: Any) -> Any:
    found = _unscale(self, *args)
    if not torch.is_grad_enabled():
        for each in found.values():
            each.zero_()
    return found


_scaler._unscale_grads_ = _unscale_and_forget
