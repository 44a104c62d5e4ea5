"""Attention under autocast gives its queries a gradient of twice the scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from changed_gradients import with_gradient
from overriding import Overridden, override


def _attention(call: Overridden) -> Any:
    query, *others = call.args
    return replace(call, args=(with_gradient(query, lambda gradient: 2 * gradient), *others)).cast(call.low).run()


override("scaled_dot_product_attention", _attention)
