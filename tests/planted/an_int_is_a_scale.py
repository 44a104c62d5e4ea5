"""``update(4)`` is taken as ``update(4.0)``: what everybody would want, and not what torch does."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_update = _scaler.update


def _converted(self: Any, new_scale: Any = None) -> None:
    _update(self, float(new_scale) if isinstance(new_scale, int) else new_scale)


_scaler.update = _converted
