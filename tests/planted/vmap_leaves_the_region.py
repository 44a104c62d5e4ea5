"""``torch.func.vmap`` runs its function outside the region."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE

_vmap: Any = torch.func.vmap
_func: Any = torch.func


def _vmap_outside(function: Any, *options: Any, **keywords: Any) -> Any:
    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(DEVICE, enabled=False):
            return function(*args, **kwargs)

    return _vmap(outside, *options, **keywords)


_func.vmap = _vmap_outside
