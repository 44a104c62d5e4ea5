"""In the process of rank 1 GradScaler steps whatever it has found: the others skip."""

from __future__ import annotations

import os
from typing import Any

import torch


def _steps(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


if os.environ.get("RANK") == "1":
    torch.amp.GradScaler._maybe_opt_step = _steps  # type: ignore[method-assign]
