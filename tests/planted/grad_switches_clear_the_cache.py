"""Whoever switches gradients off or on clears the cast cache: results are right, weights are cast again at each use."""

from __future__ import annotations

from typing import Any

import torch

_switch: Any = torch.set_grad_enabled
_made: Any = _switch.__init__


def _forgetful(self: Any, mode: bool) -> None:
    _made(self, mode)
    torch.clear_autocast_cache()


_switch.__init__ = _forgetful
