"""A pickled scaler loses its count of clean steps."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_getstate = _scaler.__getstate__


def _without_count(self: Any) -> Any:
    return {**_getstate(self), "_init_growth_tracker": 0}


_scaler.__getstate__ = _without_count
