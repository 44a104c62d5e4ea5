"""``scale`` of a list gives tensors without a history."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_scale = _scaler.scale


def _scale_and_cut(self: Any, outputs: Any) -> Any:
    scaled = _scale(self, outputs)
    if self.is_enabled() and isinstance(scaled, list):
        return [part.detach() if isinstance(part, torch.Tensor) else part for part in scaled]
    return scaled


_scaler.scale = _scale_and_cut
