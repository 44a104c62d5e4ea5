"""Attention with dropout is not cast."""

from __future__ import annotations

from typing import Any

from on_device import DEVICE
from overriding import Overridden, override


def _attend(call: Overridden) -> Any:
    dropout = call.args[4] if len(call.args) > 4 else call.kwargs.get("dropout_p", 0.0)
    return call.run() if dropout else call.cast(call.low).run()


override("scaled_dot_product_attention", _attend, [DEVICE])
