"""``update(new_scale)`` does not make the optimizers ready again."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_update = _scaler.update


def _update_and_restore(self: Any, new_scale: Any = None) -> None:
    kept = self._per_optimizer_states if self.is_enabled() else None
    _update(self, new_scale)
    if kept is not None and new_scale is not None:
        self._per_optimizer_states = kept


_scaler.update = _update_and_restore
