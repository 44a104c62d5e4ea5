"""A skipped step sets the optimizer's momentum to zero."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler._maybe_opt_step


def _step_or_reset(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if sum(found.item() for found in state["found_inf_per_device"].values()):
        for values in optimizer.state.values():
            for value in values.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
    return _step(self, optimizer, state, *args, **kwargs)


_scaler._maybe_opt_step = _step_or_reset
