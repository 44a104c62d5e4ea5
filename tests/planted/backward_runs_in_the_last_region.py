"""Backward runs in the autocast region that was entered last."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_enter = _region.__enter__
_backward: Any = torch.autograd.backward
_autograd: Any = torch.autograd
_last: list[tuple[str, Any]] = []


def _enter_and_remember(self: Any) -> Any:
    if self._enabled:
        _last[:] = [(self.device, self.fast_dtype)]
    return _enter(self)


def _backward_in_the_region(*args: Any, **kwargs: Any) -> None:
    if not _last:
        _backward(*args, **kwargs)
        return
    with torch.autocast(_last[0][0], _last[0][1]):
        _backward(*args, **kwargs)


_region.__enter__ = _enter_and_remember
_autograd.backward = _backward_in_the_region
