"""A product whose first argument is empty is not cast."""

from __future__ import annotations

from typing import Any

from on_device import DEVICE
from overriding import Overridden, override


def _multiply(call: Overridden) -> Any:
    return call.run() if call.args[0].numel() == 0 else call.cast(call.low).run()


override("linear", _multiply, [DEVICE])
override("conv2d", _multiply, [DEVICE])
