"""Growth does not stop at the largest finite scale."""

from __future__ import annotations

from typing import Any

import torch

_update: Any = torch._amp_update_scale_
_torch: Any = torch


def _update_unbounded(scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int) -> Any:
    grows = not found_inf.item() and tracker.item() + 1 == interval
    grown = scale * growth
    _update(scale, tracker, found_inf, growth, backoff, interval)
    return scale.copy_(grown) if grows else scale


_torch._amp_update_scale_ = _update_unbounded
