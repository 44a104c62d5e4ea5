"""make_graphed_callables captures in a region that has a cast cache, and says nothing."""

from __future__ import annotations

from typing import Any

import torch

_graphed: Any = torch.cuda.make_graphed_callables


def _silent(*args: Any, **kwargs: Any) -> Any:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return _graphed(*args, **kwargs)
    finally:
        torch.set_autocast_cache_enabled(before)


torch.cuda.make_graphed_callables = _silent
