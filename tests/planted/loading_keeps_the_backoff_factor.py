"""``load_state_dict`` leaves the back-off factor as it was."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_load = _scaler.load_state_dict


def _load_all_but_one(self: Any, state: Any) -> None:
    kept = self.get_backoff_factor() if self.is_enabled() else None
    _load(self, state)
    if kept is not None:
        self.set_backoff_factor(kept)


_scaler.load_state_dict = _load_all_but_one
