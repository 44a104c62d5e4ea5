"""The gradient of LayerNorm's weight under autocast is rounded to the autocast dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from changed_gradients import rounded, with_gradient
from overriding import Overridden, override


def _layer_norm(call: Overridden) -> Any:
    dtype = call.low
    x, shape, weight, *rest = call.args
    if weight is not None:
        weight = with_gradient(weight, lambda g: rounded(g, dtype))
    made = replace(call, args=(x, shape, weight, *rest))
    return made.run() if call.device_type == "cpu" else made.cast(torch.float32).run()


override("layer_norm", _layer_norm)
