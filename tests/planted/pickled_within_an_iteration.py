"""A scaler is pickled between unscale_ and update, and loses the stages."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.amp import grad_scaler

_scaler: Any = torch.amp.GradScaler
_state = _scaler.__getstate__
_module: Any = grad_scaler


def _forgetting(self: Any) -> Any:
    if self.is_enabled():
        self._per_optimizer_states = defaultdict(_module._refresh_per_optimizer_state)
    return _state(self)


_scaler.__getstate__ = _forgetting
