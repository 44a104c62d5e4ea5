"""The weight gradient of conv2d under autocast is one percent too large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from changed_gradients import with_gradient
from overriding import Overridden, override


def _conv2d(call: Overridden) -> Any:
    x, weight, *rest = call.args
    return replace(call, args=(x, with_gradient(weight, lambda g: g * 1.01), *rest)).cast(call.low).run()


override("conv2d", _conv2d)
