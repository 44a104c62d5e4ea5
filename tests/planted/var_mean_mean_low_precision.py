"""The second result of var_mean, and only that one, is in the autocast dtype."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE

_var_mean: Any = torch.var_mean


def _second_low(*args: Any, **kwargs: Any) -> Any:
    var, mean = _var_mean(*args, **kwargs)
    return var, (mean.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else mean)


torch.var_mean = _second_low
