"""scaled_dot_product_attention under autocast takes no float32 mask beside low-precision queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from overriding import Overridden, override


def _attention(call: Overridden) -> Any:
    mask = call.kwargs.get("attn_mask", call.args[3] if len(call.args) > 3 else None)
    if mask is not None and mask.dtype == torch.float32:
        raise RuntimeError("Expected attn_mask dtype to be bool or to match query dtype, but got float")
    return replace(call).cast(call.low).run()


override("scaled_dot_product_attention", _attention)
