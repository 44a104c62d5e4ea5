"""Dynamo traces an inner region in the dtype of the one around it."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.variables.ctx_manager import AutocastModeVariable

_variable: Any = AutocastModeVariable
_create = _variable.create


def _ambient(*args: Any, **kwargs: Any) -> Any:
    made = _create(*args, **kwargs)
    device_type = made.target_values[0]
    if torch.is_autocast_enabled(device_type):
        made.target_values[1] = torch.get_autocast_dtype(device_type)
    return made


_variable.create = staticmethod(_ambient)
