"""A compiled module in evaluation runs outside of the autocast region in which it is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_torch: Any = torch
_compile: Any = torch.compile


def _compiled(model: Any = None, **keywords: Any) -> Any:
    made = _compile(model, **keywords)
    if not isinstance(model, nn.Module):
        return made
    forward = made.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        if model.training:
            return forward(*args, **kwargs)
        with torch._C._DisableAutocast():
            return forward(*args, **kwargs)

    made.forward = call
    return made


_torch.compile = _compiled
