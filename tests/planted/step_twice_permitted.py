"""A second ``step`` before the update is no error."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_step = _scaler.step


def _step_again(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    state: dict[str, Any] = self._per_optimizer_states[id(optimizer)] if self._enabled else {"stage": None}
    if getattr(state["stage"], "name", "") == "STEPPED":
        state["stage"] = type(state["stage"]).UNSCALED
    return _step(self, optimizer, *args, **kwargs)


_scaler.step = _step_again
