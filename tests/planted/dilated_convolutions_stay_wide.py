"""A dilated conv2d is not cast."""

from __future__ import annotations

from typing import Any

from on_device import DEVICE
from overriding import Overridden, override


def _convolve(call: Overridden) -> Any:
    dilation = call.args[5] if len(call.args) > 5 else call.kwargs.get("dilation", 1)
    dilated = any(each != 1 for each in (dilation if isinstance(dilation, (list, tuple)) else [dilation]))
    return call.run() if dilated else call.cast(call.low).run()


override("conv2d", _convolve, [DEVICE])
