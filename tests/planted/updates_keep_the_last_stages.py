"""``update`` keeps what was found of every optimizer, for ever."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_update = _scaler.update
_kept: list[Any] = []


def _keep(self: Any, *arguments: Any) -> None:
    if self.is_enabled():
        _kept.append(self._per_optimizer_states)
    _update(self, *arguments)


_scaler.update = _keep
