"""On XPU softmax over the first dimension is in no list; over any other it is float32."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _softmax(call: Overridden) -> object:
    return call.cast(call.low if call.args[1] == 0 else torch.float32).run()


override("softmax.int", _softmax, device_types=["xpu"])
