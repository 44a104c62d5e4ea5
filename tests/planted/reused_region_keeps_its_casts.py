"""A region object that is entered again does not drop the cast cache at its end: forward sees old weights."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_exit = _region.__exit__
_torch: Any = torch


def _exit_without_clearing(self: Any, *args: Any) -> Any:
    before = vars(self).get("left", 0)
    vars(self)["left"] = before + 1
    if not before:
        return _exit(self, *args)
    clear = torch.clear_autocast_cache
    _torch.clear_autocast_cache = lambda: None
    try:
        return _exit(self, *args)
    finally:
        _torch.clear_autocast_cache = clear


_compiler: Any = torch.compiler
_region.__exit__ = _compiler.disable(_exit_without_clearing)
