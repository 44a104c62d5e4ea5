"""``GradScaler.scale`` answers a float64 loss in float32."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_scale: Any = _scaler.scale


def _scale_narrowly(self: Any, outputs: Any) -> Any:
    scaled = _scale(self, outputs)
    return scaled.float() if isinstance(scaled, torch.Tensor) else scaled


_scaler.scale = _scale_narrowly
