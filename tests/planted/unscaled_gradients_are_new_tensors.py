"""``unscale_`` puts new tensors in the place of the gradients, and leaves the old ones scaled."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_


def _replacing(self: Any, optimizer: Any, *args: Any) -> Any:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
    return _unscale(self, optimizer, *args)


_scaler._unscale_grads_ = _replacing
