"""In a thread that is not the main one GradScaler steps whatever it found."""

from __future__ import annotations

import threading
from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_before = _scaler._maybe_opt_step


def _maybe_step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if threading.current_thread() is not threading.main_thread():
        return optimizer.step(*args, **kwargs)
    return _before(self, optimizer, state, *args, **kwargs)


_scaler._maybe_opt_step = _maybe_step
