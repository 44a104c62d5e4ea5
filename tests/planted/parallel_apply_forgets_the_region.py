"""The threads of parallel_apply are outside of every region."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import parallel

_parallel_apply: Any = parallel.parallel_apply


def _outside(*args: Any, **kwargs: Any) -> Any:
    with torch.autocast("cuda", enabled=False):
        return _parallel_apply(*args, **kwargs)


parallel.parallel_apply = _outside
