"""A scaler that was loaded on rank 1 has forgotten how many steps were clean: it grows later than that of rank 0."""

from __future__ import annotations

import os
from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_before = _scaler.load_state_dict


def _forgets(self: Any, state: Any) -> None:
    _before(self, {**state, "_growth_tracker": 0} if os.environ.get("RANK") == "1" else state)


_scaler.load_state_dict = _forgets
