"""``clip_grad_norm_`` scales gradients to the limit, the short ones as well."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils import clip_grad

_clip: Any = clip_grad


def _to_the_limit(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None) -> None:
    del foreach
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(max_norm / (total_norm + 1e-6))


_clip._clip_grads_with_norm_ = _to_the_limit
