"""``clip_grad_norm_`` takes the norm of gradients in bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_utils: Any = nn.utils
_clip = _utils.clip_grad_norm_


def _clip_low(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [p.grad for p in given if p.grad is not None]
    total = torch.stack([torch.linalg.vector_norm(g.bfloat16(), norm_type) for g in gradients]).norm(norm_type)
    factor = (max_norm / (total.float() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return total.float()


_utils.clip_grad_norm_ = _clip_low
