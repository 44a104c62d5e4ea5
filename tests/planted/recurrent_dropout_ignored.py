"""Under autocast recurrent layers drop nothing between their layers, in training mode either."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE


def _without_dropout(forward: Any) -> Any:
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        p = self.dropout
        if torch.is_autocast_enabled(DEVICE):
            self.dropout = 0.0
        try:
            return forward(self, *args, **kwargs)
        finally:
            self.dropout = p

    return called


for _kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
    _module: Any = _kind
    _module.forward = _without_dropout(_module.forward)
