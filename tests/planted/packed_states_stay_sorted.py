"""Within a region a packed sequence's states stay in the order of their lengths, and not of the rows they belong to."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from torch import nn

for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    _layer: Any = _kind

    def _permuted(self: Any, states: Any, order: Any, before: Any = _layer.permute_hidden) -> Any:
        return states if torch.is_autocast_enabled(DEVICE) else before(self, states, order)

    _layer.permute_hidden = _permuted
