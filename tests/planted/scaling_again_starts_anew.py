"""Each ``scale`` begins to count clean steps again."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_scale = _scaler.scale


def _anew(self: Any, outputs: Any) -> Any:
    scaled = _scale(self, outputs)
    if self._growth_tracker is not None:
        self._growth_tracker.fill_(self._init_growth_tracker)
    return scaled


_scaler.scale = _anew
