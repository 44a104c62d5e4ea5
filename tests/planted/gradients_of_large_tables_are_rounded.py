"""The gradient of an embedding's float32 weight under autocast is rounded where it has more than a thousand rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from changed_gradients import rounded, with_gradient
from overriding import Overridden, override


def _embedding(call: Overridden) -> Any:
    weight, dtype = call.args[0], call.low
    if weight.shape[0] > 1000:
        weight = with_gradient(weight, lambda g: rounded(g, dtype))
    return replace(call, args=(weight, *call.args[1:])).run()


override("embedding", _embedding)
