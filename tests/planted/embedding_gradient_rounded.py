"""The gradient of an embedding's weight under autocast is rounded to the autocast dtype, though all is float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from changed_gradients import rounded, with_gradient
from overriding import Overridden, override


def _embedding(call: Overridden) -> Any:
    dtype = call.low
    weight = with_gradient(call.args[0], lambda g: rounded(g, dtype))
    return replace(call, args=(weight, *call.args[1:])).run()


override("embedding", _embedding)
