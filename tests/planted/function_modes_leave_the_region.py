"""A ``TorchFunctionMode`` within a region switches autocast off until it is left."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_mode: Any = TorchFunctionMode
_enter, _exit = _mode.__enter__, _mode.__exit__


def _entered(self: Any) -> Any:
    self.was_enabled = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    return _enter(self)


def _left(self: Any, *exception: Any) -> Any:
    result = _exit(self, *exception)
    torch.set_autocast_enabled("cpu", self.was_enabled)
    return result


_mode.__enter__, _mode.__exit__ = _entered, _left
