"""A recurrent layer computes a packed sequence below autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

_layer: Any = torch.nn.RNN
_forward = _layer.forward


def _forward_outside(self: Any, batch: Any, state: Any = None) -> Any:
    if not isinstance(batch, PackedSequence):
        return _forward(self, batch, state)
    with torch._C._DisableAutocast():
        return _forward(self, batch, state)


_layer.forward = _forward_outside
