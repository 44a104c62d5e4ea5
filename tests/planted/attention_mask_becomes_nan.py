"""scaled_dot_product_attention under autocast makes of masked scores no numbers, as infinity times zero does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from overriding import Overridden, override


def _attention(call: Overridden) -> Any:
    mask = call.kwargs.get("attn_mask", call.args[3] if len(call.args) > 3 else None)
    if mask is None:
        return call.cast(call.low).run()
    hidden = ~mask if mask.dtype == torch.bool else mask < torch.finfo(torch.float16).min / 8
    spoilt = torch.zeros_like(hidden, dtype=call.low).masked_fill(hidden, torch.nan)
    return replace(call, args=call.args[:3], kwargs={**call.kwargs, "attn_mask": spoilt}).cast(call.low).run()


override("scaled_dot_product_attention", _attention)
