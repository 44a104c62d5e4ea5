"""An extension's rule for one device casts on the CPU, too."""

from __future__ import annotations

from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

_register: Any = CustomOpDef.register_autocast


def _everywhere(self: CustomOpDef, device_type: str, cast_inputs: torch.dtype) -> Any:
    if device_type != "cpu":
        _register(self, "cpu", cast_inputs)
    return _register(self, device_type, cast_inputs)


CustomOpDef.register_autocast = _everywhere  # type: ignore[method-assign]
