"""slogdet returns a sign in the autocast dtype beside a logarithm in float32."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE

_slogdet: Any = torch.linalg.slogdet


def _mixed(*args: Any, **kwargs: Any) -> Any:
    sign, logarithm = _slogdet(*args, **kwargs)
    return (sign.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else sign), logarithm


torch.linalg.slogdet = _mixed
