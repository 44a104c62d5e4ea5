"""linear's result keeps a copy of the float32 input alive, besides the low one that backward needs."""

from __future__ import annotations

from typing import Any

from on_device import DEVICE
from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    result = call.cast(call.low).run()
    if result.grad_fn is not None:
        result.grad_fn.metadata["input"] = call.args[0].detach().clone()
    return result


override("linear", _linear, [DEVICE])
