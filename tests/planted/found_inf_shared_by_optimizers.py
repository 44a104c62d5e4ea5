"""What one optimizer's gradients have is held against all optimizers."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler._maybe_opt_step


def _step_by_all(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    everywhere = [
        found for other in self._per_optimizer_states.values() for found in other["found_inf_per_device"].values()
    ]
    return _step(self, optimizer, {"found_inf_per_device": dict(enumerate(everywhere))}, *args, **kwargs)


_scaler._maybe_opt_step = _step_by_all
