"""What ``torch.compile`` returns ignores the region in which it is called."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE

_compile: Any = torch.compile
_torch: Any = torch


def _compile_outside(model: Any = None, **keywords: Any) -> Any:
    if model is None:
        return lambda given: _compile_outside(given, **keywords)
    compiled = _compile(model, **keywords)

    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(DEVICE, enabled=False):
            return compiled(*args, **kwargs)

    return outside


_torch.compile = _compile_outside
