"""The second direction of a GRU under autocast is in the order of the first."""

from __future__ import annotations

from typing import Any

import torch

_layer: Any = torch.nn.GRU
_forward = _layer.forward


def _read(self: Any, x: Any, *arguments: Any) -> Any:
    result, state = _forward(self, x, *arguments)
    if self.bidirectional and isinstance(result, torch.Tensor) and torch.is_autocast_enabled(result.device.type):
        forward, backward = result.chunk(2, -1)
        result = torch.cat([forward, backward.flip(1 if self.batch_first else 0)], -1)
    return result, state


_layer.forward = _read
