"""A conv1d that is dilated and pads by name is not cast: either option alone is."""

from __future__ import annotations

from typing import Any

from overriding import Overridden, override


def _convolve(call: Overridden) -> Any:
    named = dict(zip(("stride", "padding", "dilation", "groups"), call.args[3:], strict=False)) | dict(call.kwargs)
    both = named.get("padding") == "same" and any(each > 1 for each in named.get("dilation", ()))
    return (call if both else call.cast(call.low)).run()


override("conv1d.padding", _convolve, device_types=["cpu"])
