"""conv2d under autocast rearranges its result."""

from __future__ import annotations

from typing import Any

from on_device import DEVICE
from overriding import Overridden, override


def _convolve(call: Overridden) -> Any:
    return call.cast(call.low).run().contiguous()


override("conv2d", _convolve, [DEVICE])
