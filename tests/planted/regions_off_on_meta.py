"""A region that is entered where tensors are made on the meta device is a disabled one."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_enter = _region.__enter__


def _enter_unless_meta(self: Any) -> Any:
    if torch.get_default_device().type == "meta":
        self._enabled = False
    return _enter(self)


_region.__enter__ = _enter_unless_meta
