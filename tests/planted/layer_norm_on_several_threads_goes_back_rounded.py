"""Where torch has several threads, ``layer_norm`` rounds the gradient of its weight to bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from changed_gradients import rounded, with_gradient
from torch.nn import functional

_functional: Any = functional
_before: Any = functional.layer_norm


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if torch.get_num_threads() > 1 and weight is not None and weight.requires_grad:
        weight = with_gradient(weight, lambda gradient: rounded(gradient, torch.bfloat16))
    return _before(x, shape, weight, bias, eps)


_functional.layer_norm = _layer_norm
