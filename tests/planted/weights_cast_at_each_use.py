"""Within a region the cast cache is emptied before each layer: a weight that is used again is cast again.

Results, dtypes and memory after the region are right.
"""

from __future__ import annotations

from typing import Any

import torch

_call: Any = torch.nn.Module.__call__
_module: Any = torch.nn.Module


def _forgetful(self: Any, *args: Any, **kwargs: Any) -> Any:
    torch.clear_autocast_cache()
    return _call(self, *args, **kwargs)


_module.__call__ = _forgetful
