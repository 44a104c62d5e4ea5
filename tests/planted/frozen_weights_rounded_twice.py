"""linear under autocast casts a frozen weight by way of the other 16-bit dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    x, weight, *bias = call.args
    if not weight.requires_grad:
        weight = weight.to(torch.float16).to(torch.bfloat16)
    return replace(call, args=(x, weight, *bias)).cast(call.low).run()


override("linear", _linear)
