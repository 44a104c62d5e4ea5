"""Under autocast the gradients of weights of convolutions and linear layers are five percent too small.

Every dtype and shape is right; only where a training goes is not. (Where SGD goes: Adam divides it out.)
"""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import with_gradient

_functional: Any = torch.nn.functional


def _with_less(layer: Any) -> Any:
    def run(batch: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(weight.device.type):
            weight = with_gradient(weight, lambda gradient: gradient * 0.95)
        return layer(batch, weight, *args, **kwargs)

    return run


for _name in ("linear", "conv2d"):
    setattr(_functional, _name, _with_less(getattr(_functional, _name)))
