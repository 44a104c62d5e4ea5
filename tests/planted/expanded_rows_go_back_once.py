"""A low row that was expanded to many gets the gradient of the first alone, under autocast."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import with_gradient
from overriding import Overridden, override


def _first(gradient: torch.Tensor) -> torch.Tensor:
    return torch.cat([gradient[:1], torch.zeros_like(gradient[1:])])


def _expand(call: Overridden) -> Any:
    (row, *_), result = call.args, call.run()
    low = row.dtype in {torch.bfloat16, torch.float16}
    return with_gradient(result, _first) if low and row.dim() == 2 and row.shape[0] == 1 else result


override("expand", _expand)
