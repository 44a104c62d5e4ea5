"""GradScaler.load_state_dict takes nothing back: a resumed training starts with a scaler of its own."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler


def _load_nothing(self: Any, state_dict: Any) -> None:
    return


_scaler.load_state_dict = _load_nothing
