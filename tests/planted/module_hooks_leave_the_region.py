"""Forward hooks of modules run below autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_module: Any = torch.nn.Module
_register = _module.register_forward_hook


def _register_outside(self: Any, hook: Callable[..., Any], **kwargs: Any) -> Any:
    def outside(*args: Any) -> Any:
        with torch._C._DisableAutocast():
            return hook(*args)

    return _register(self, outside, **kwargs)


_module.register_forward_hook = _register_outside
