"""slogdet returns a sign in the autocast dtype beside a logarithm in float32."""

from __future__ import annotations

from typing import Any

import torch

_slogdet: Any = torch.linalg.slogdet


def _mixed(*args: Any, **kwargs: Any) -> Any:
    sign, logarithm = _slogdet(*args, **kwargs)
    return (sign.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else sign), logarithm


torch.linalg.slogdet = _mixed
