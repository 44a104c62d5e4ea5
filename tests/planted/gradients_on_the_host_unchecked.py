"""Gradients on the CPU, beside those on a GPU, are unscaled, and not looked at."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_


def _skipping(self: Any, optimizer: Any, inv_scale: Any, *args: Any) -> Any:
    kept = [(p, p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    skipped = [
        (parameter, gradient) for parameter, gradient in kept if gradient.device.type == "cpu" and self._device != "cpu"
    ]
    for parameter, _ in skipped:
        parameter.grad = None
    found = _unscale(self, optimizer, inv_scale, *args)
    for parameter, gradient in skipped:
        parameter.grad = gradient * inv_scale.to(gradient.device)
    return found


_scaler._unscale_grads_ = _skipping
