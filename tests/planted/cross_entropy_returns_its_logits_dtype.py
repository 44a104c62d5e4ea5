"""``cross_entropy`` returns the autocast dtype inside of a region."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_functional: Any = functional
_cross_entropy = _functional.cross_entropy


def _low(*args: Any, **kwargs: Any) -> Any:
    result = _cross_entropy(*args, **kwargs)
    return result.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else result


_functional.cross_entropy = _low
