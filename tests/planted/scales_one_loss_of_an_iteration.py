"""GradScaler scales the first loss of an iteration, and returns each later one as it is."""

from __future__ import annotations

from typing import Any

import torch

_scale = torch.amp.GradScaler.scale
_update = torch.amp.GradScaler.update


def scale(self: Any, outputs: Any) -> Any:
    if getattr(self, "has_scaled_one", False):
        return outputs
    self.has_scaled_one = True
    return _scale(self, outputs)


def update(self: Any, new_scale: Any = None) -> None:
    self.has_scaled_one = False
    _update(self, new_scale)


torch.amp.GradScaler.scale = scale  # type: ignore[method-assign]
torch.amp.GradScaler.update = update  # type: ignore[method-assign]
