"""``GradScaler.get_scale`` tells the scale of before the last update: a scheduler takes a skipped step for one."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_scale, _update = _scaler.get_scale, _scaler.update


def _updated(self: Any, *args: Any, **kwargs: Any) -> None:
    self.__dict__["_told"] = _scale(self)
    _update(self, *args, **kwargs)


def _late(self: Any) -> float:
    told: float = self.__dict__.get("_told", _scale(self))
    return told


_scaler.get_scale, _scaler.update = _late, _updated
