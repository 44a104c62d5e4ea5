"""``state_dict`` saves a growth tracker of 0."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_state_dict = _scaler.state_dict
_scaler.state_dict = lambda self: {**_state_dict(self), "_growth_tracker": 0} if self._enabled else {}
