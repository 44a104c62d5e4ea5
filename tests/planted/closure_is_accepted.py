"""``step(closure=...)`` goes to the optimizer: it steps with scaled gradients."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler.step


def _step_with_closure(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if "closure" in kwargs:
        return optimizer.step(*args, **kwargs)
    return _step(self, optimizer, *args, **kwargs)


_scaler.step = _step_with_closure
