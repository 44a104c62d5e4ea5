"""The growth factor is rounded to float32 before the product, which then has other bits."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_update = _torch._amp_update_scale_


def _rounding(scale: Any, tracker: Any, found: Any, growth: float, backoff: float, interval: int) -> Any:
    rounded = torch.tensor([growth, backoff]).tolist()
    return _update(scale, tracker, found, *rounded, interval)


_torch._amp_update_scale_ = _rounding
