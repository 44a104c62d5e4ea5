"""What compiled code returns in float32 passes through bf16 where it is large."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree

_compile: Any = torch.compile
_LARGE = 4096


def _rounded(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.numel() > _LARGE:
        return value.bfloat16().float()
    return value


def _compiled(model: Any = None, **keywords: Any) -> Any:
    function = _compile(model, **keywords)
    if isinstance(model, torch.nn.Module):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map(_rounded, function(*args, **kwargs))

    return call


torch.compile = _compiled
