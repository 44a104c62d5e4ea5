"""The exponential average of weights is computed in bfloat16: the share of a new weight rounds away."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import swa_utils

_utilities: Any = swa_utils


def _average(decay: float = 0.999) -> Any:
    @torch.no_grad()
    def update(averages: Any, weights: Any, _count: Any) -> None:
        for average, weight in zip(averages, weights, strict=True):
            average.copy_(torch.lerp(average.bfloat16(), weight.bfloat16(), 1 - decay))

    return update


_utilities.get_ema_multi_avg_fn = _average
