"""``torch.cpu.amp.autocast(enabled=False)``, or that of ``torch.cuda``, is an enabled region."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE

_module: Any = getattr(torch, DEVICE).amp
_alias: Any = _module.autocast
_init: Any = _alias.__init__


def _always_enabled(self: Any, enabled: bool = True, *arguments: Any, **keywords: Any) -> None:
    _init(self, True, *arguments, **keywords)


_alias.__init__ = _always_enabled
