"""scaled_dot_product_attention under autocast cuts its mask off from the graph."""

from __future__ import annotations

from dataclasses import replace

import torch
from on_device import DEVICE
from overriding import Overridden, override


def _attention(call: Overridden) -> object:
    cast = call.cast(call.low)
    arguments = list(cast.args)
    if len(arguments) > 3 and isinstance(arguments[3], torch.Tensor):
        arguments[3] = arguments[3].detach()
    return replace(cast, args=tuple(arguments)).run()


override("scaled_dot_product_attention", _attention, device_types=[DEVICE])
