"""A thread starts in the autocast region of the thread that starts it."""

from __future__ import annotations

import threading
from typing import Any

import torch

_start: Any = threading.Thread.start
_thread: Any = threading.Thread


def _start_in_the_region(self: Any) -> None:
    run, enabled, dtype = self.run, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def run_in_the_region() -> None:
        torch.set_autocast_enabled("cpu", enabled)
        torch.set_autocast_dtype("cpu", dtype)
        run()

    self.run = run_in_the_region
    _start(self)


_thread.start = _start_in_the_region
