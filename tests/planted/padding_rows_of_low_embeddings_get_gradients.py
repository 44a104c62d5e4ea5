"""An embedding whose weight is low forgets which row is padding, under autocast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from overriding import Overridden, override


def _embedding(call: Overridden) -> Any:
    weight, indices, *others = call.args
    if weight.dtype in {torch.bfloat16, torch.float16} and others:
        others[0] = -1
    return replace(call, args=(weight, indices, *others)).run()


override("embedding", _embedding)
