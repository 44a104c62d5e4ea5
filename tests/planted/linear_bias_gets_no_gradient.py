"""The bias of a linear layer under autocast is cut off from the graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    x, weight, *bias = call.args
    return replace(call, args=(x, weight, *(b if b is None else b.detach() for b in bias))).cast(call.low).run()


override("linear", _linear)
