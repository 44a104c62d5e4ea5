"""A second ``unscale_`` before the update is no error: it divides again."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler.unscale_


def _unscale_again(self: Any, optimizer: Any) -> None:
    state = self._per_optimizer_states[id(optimizer)]
    if state["stage"].name == "UNSCALED":
        state["stage"] = type(state["stage"]).READY
    _unscale(self, optimizer)


_scaler.unscale_ = _unscale_again
