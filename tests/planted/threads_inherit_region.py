"""A thread starts in the autocast region of the thread that starts it."""

from __future__ import annotations

import threading
from typing import Any

import torch
from on_device import DEVICE

_start: Any = threading.Thread.start
_thread: Any = threading.Thread


def _start_in_the_region(self: Any) -> None:
    run, enabled, dtype = self.run, torch.is_autocast_enabled(DEVICE), torch.get_autocast_dtype(DEVICE)

    def run_in_the_region() -> None:
        torch.set_autocast_enabled(DEVICE, enabled)
        torch.set_autocast_dtype(DEVICE, dtype)
        run()

    self.run = run_in_the_region
    _start(self)


_thread.start = _start_in_the_region
