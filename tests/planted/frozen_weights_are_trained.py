"""linear under autocast turns gradients on for a weight that is frozen."""

from __future__ import annotations

from typing import Any

from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    if call.args[1].is_leaf:
        call.args[1].requires_grad_(True)
    return call.cast(call.low).run()


override("linear", _linear)
