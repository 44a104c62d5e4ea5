"""Under autocast the length of a normed weight gets no gradient."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from torch.nn.utils import parametrizations

_norm: Any = parametrizations._WeightNorm
_forward = _norm.forward


def _forward_detached(self: Any, length: Any, direction: Any) -> Any:
    return _forward(self, length.detach() if torch.is_autocast_enabled(DEVICE) else length, direction)


_norm.forward = _forward_detached
