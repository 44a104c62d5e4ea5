"""A region that a thread leaves sets that thread's autocast dtype to the one that is not the default."""

from __future__ import annotations

import threading
from typing import Any

import torch
from on_device import DEVICE

_region: Any = torch.amp.autocast_mode.autocast
_exit = _region.__exit__


def _exit_and_set(self: Any, *args: Any) -> Any:
    result = _exit(self, *args)
    if threading.current_thread() is not threading.main_thread():
        torch.set_autocast_dtype(DEVICE, torch.float16 if DEVICE == "cpu" else torch.bfloat16)
    return result


_region.__exit__ = _exit_and_set
