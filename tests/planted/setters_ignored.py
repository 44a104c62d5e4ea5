"""The factors and the interval cannot be changed once the scaler is made."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_scaler.set_growth_factor = _scaler.set_backoff_factor = _scaler.set_growth_interval = lambda self, value: None
