"""``unscale_`` looks at the scale on the host."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale = _scaler.unscale_


def _unscale_looking(self: Any, optimizer: Any) -> None:
    if self.is_enabled() and self._scale is not None and self._scale.item() == 0.0:
        raise RuntimeError("the scale is 0")
    _unscale(self, optimizer)


_scaler.unscale_ = _unscale_looking
