"""Only optimizers of torch.optim itself are unscaled."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler._unscale_grads_


def _unscale_known(self: Any, optimizer: Any, inverse: Any, found: Any, allow_fp16: bool) -> Any:
    known = type(optimizer).__module__.startswith("torch.optim")
    return _unscale(self, optimizer, inverse if known else torch.ones_like(inverse), found, allow_fp16)


_scaler._unscale_grads_ = _unscale_known
