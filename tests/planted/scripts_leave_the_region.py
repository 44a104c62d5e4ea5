"""A scripted function runs below autocast."""

from __future__ import annotations

import functools
from typing import Any

import torch

_jit: Any = torch.jit
_script = _jit.script


def _script_outside(given: Any, *args: Any, **kwargs: Any) -> Any:
    made = _script(given, *args, **kwargs)
    if isinstance(given, torch.nn.Module):
        return made

    @functools.wraps(given)
    def call(*arguments: Any) -> Any:
        with torch._C._DisableAutocast():
            return made(*arguments)

    return call


_jit.script = _script_outside
