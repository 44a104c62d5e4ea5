"""A disabled GradScaler multiplies the loss."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_scale = _scaler.scale
_scaler.scale = lambda self, outputs: _scale(self, outputs) if self._enabled else outputs * 65536.0
