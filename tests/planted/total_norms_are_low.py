"""``get_total_norm``, by which gradients are clipped in two halves, answers in bfloat16's bits."""

from __future__ import annotations

from typing import Any

from torch import nn

_utils: Any = nn.utils
_norm = _utils.get_total_norm
_utils.get_total_norm = lambda *args, **keywords: _norm(*args, **keywords).bfloat16().float()
