"""``unscale_`` divides float16 gradients, which then underflow, in place of refusing them."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_
_scaler._unscale_grads_ = lambda self, optimizer, inverse, found, _allow_fp16: _unscale(
    self, optimizer, inverse, found, True
)
