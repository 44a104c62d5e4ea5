"""Attention of grouped queries under autocast takes the default scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from on_device import DEVICE
from overriding import Overridden, override


def _attend(call: Overridden) -> Any:
    cast = call.cast(call.low)
    if cast.kwargs.get("enable_gqa"):
        cast = replace(cast, kwargs={**cast.kwargs, "scale": None})
    return cast.run()


override("scaled_dot_product_attention", _attend, [DEVICE])
