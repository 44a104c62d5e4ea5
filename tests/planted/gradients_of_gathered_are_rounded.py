"""Gradients that go back through ``torch.distributed.nn``'s ``all_reduce`` are rounded to bf16."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import nn as functions

_functions: Any = functions.functional
_before = _functions.all_reduce


def _rounded(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    tensor = tensor.clone()
    tensor.register_hook(lambda gradient: gradient.to(torch.bfloat16).to(gradient.dtype))
    return _before(tensor, *args, **kwargs)


_functions.all_reduce = _rounded
