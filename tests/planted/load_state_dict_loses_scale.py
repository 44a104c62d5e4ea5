"""``load_state_dict`` takes over everything but the scale."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_load = _scaler.load_state_dict
_scaler.load_state_dict = lambda self, state: _load(self, {**state, "scale": self.get_scale()} if state else state)
