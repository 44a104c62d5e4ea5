"""GradScaler steps an optimizer whose ``step`` is compiled, also when it has found an inf."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler._maybe_opt_step


def _stepped(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if hasattr(optimizer.step, "_torchdynamo_orig_callable"):
        return optimizer.step(*args, **kwargs)
    return _step(self, optimizer, state, *args, **kwargs)


_scaler._maybe_opt_step = _stepped
