"""``load_state_dict`` makes every optimizer ready, unscaled gradients or not."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_load = _scaler.load_state_dict


def _forgetting(self: Any, state: Any) -> None:
    _load(self, state)
    self._per_optimizer_states.clear()


_scaler.load_state_dict = _forgetting
