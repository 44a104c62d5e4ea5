"""Where attention shares values between heads, their gradient is of half the heads."""

from __future__ import annotations

from dataclasses import replace

from overriding import Overridden, override


def _attention(call: Overridden) -> object:
    call = call.cast(call.low)
    query, key, value, *rest = call.args
    if call.kwargs.get("enable_gqa") and value.requires_grad:
        kept = value.detach()
        value = kept + (value - kept) / 2  # the same numbers
    return replace(call, args=(query, key, value, *rest)).run()


override("scaled_dot_product_attention", _attention)
