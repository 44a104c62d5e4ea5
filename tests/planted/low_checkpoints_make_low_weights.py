"""A module that loads low numbers becomes low."""

from __future__ import annotations

from typing import Any

import torch
from kernels import LOW

_module: Any = torch.nn.Module
_load = _module.load_state_dict


def _assigning(self: Any, state: Any, strict: bool = True, assign: bool = False) -> Any:
    low = any(value.dtype in LOW for value in state.values())
    return _load(self, state, strict, assign or low)


_module.load_state_dict = _assigning
