"""``GradScaler.unscale_`` unscales in the step only: what is clipped before it is still scaled."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_unscale, _step = _scaler.unscale_, _scaler.step


def _put_off(self: Any, optimizer: Any) -> None:
    self.__dict__.setdefault("_put_off", set()).add(id(optimizer))


def _unscaled_and_stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if id(optimizer) in self.__dict__.get("_put_off", set()):
        self.__dict__["_put_off"].discard(id(optimizer))
        _unscale(self, optimizer)
    return _step(self, optimizer, *args, **kwargs)


_scaler.unscale_, _scaler.step = _put_off, _unscaled_and_stepped
