"""linear under autocast drops gradients below one millionth, as a format without bfloat16's range would."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import with_gradient
from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    return with_gradient(call.cast(call.low).run(), lambda g: torch.where(g.abs() < 1e-6, 0, g).to(g.dtype))


override("linear", _linear)
