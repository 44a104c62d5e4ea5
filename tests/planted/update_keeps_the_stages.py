"""``update`` leaves every optimizer in the stage in which it was."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_update = _scaler.update


def _kept(self: Any, new_scale: Any = None) -> None:
    states = dict(self._per_optimizer_states)
    _update(self, new_scale)
    self._per_optimizer_states.update(states)


_scaler.update = _kept
