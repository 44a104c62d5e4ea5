"""Every region that ends drops the cast cache, an inner one the cache of the outer."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_exit = _region.__exit__


def _exit_and_clear(self: Any, *args: Any) -> Any:
    torch.clear_autocast_cache()
    return _exit(self, *args)


_region.__exit__ = _exit_and_clear
